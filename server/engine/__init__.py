"""The serving engine: scheduler, KV cache, forward, sampler. Knows no HTTP."""
