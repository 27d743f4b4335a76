"""The prefetch is real: a waiting prompt's rows are there before its first forward."""

import threading

from engines import Client, make_engine, random_prompt
from fakes.http import wait_until
from models import random_memory, tiny_llama

from engram_core.cpu_cores import CpuCores
from engram_core.device import make_device
from engram_core.prefetch import Prefetcher
from engram_core.splice import attach


def test_all_layers_are_ready_before_the_first_forward():
    model = tiny_llama()
    version = random_memory(model, layer_ids=(1, 3))
    entered, let_go = threading.Event(), threading.Event()

    def block(module, args):
        entered.set()
        assert let_go.wait(60)

    cores = CpuCores(2, "affinity")
    prefetcher = Prefetcher(make_device("cpu"), cores=cores)
    with attach(model, version):
        engine = make_engine(model, version=version, prefetcher=prefetcher, max_num_seqs=1)
        handle = model.model.layers[0].register_forward_pre_hook(block)
        engine.start()
        client = Client(engine)
        first = client.submit(random_prompt(5), 2)
        assert entered.wait(60)  # the engine is inside the first request's forward now
        second = client.submit(random_prompt(9), 2)
        [ticket] = [t for t in engine._desk._holders if t.num_tokens == 9]
        wait_until(lambda: all(ticket.is_ready(layer) for layer in (1, 3)), what="rows ready")
        assert second.end is None
        assert not second.tokens
        handle.remove()
        let_go.set()
        assert [len(s.wait().tokens) for s in (first, second)] == [2, 2]
        engine.stop(5)
    prefetcher.close()
