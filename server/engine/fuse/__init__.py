"""Decoder layers of Llama's kind, replaced at load by one layer with fused weights."""
