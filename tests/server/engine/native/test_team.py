"""Teams wake up, sleep and go home."""

import gc
import threading
import time

import torch
from torch import nn

from server.engine.native.choice import FormatChoice
from server.engine.native.native_linear import NativeLinear
from server.engine.native.team import Team, shared_team


def members():
    return [thread for thread in threading.enumerate() if thread.name.startswith("kernels-")]


def make(team):
    layer = nn.Linear(64, 300, bias=False).bfloat16().requires_grad_(False)
    return NativeLinear(layer, team, FormatChoice("bf16", "bf16"))


def test_a_team_that_fell_asleep_wakes_up():
    team = Team(3)
    layer, x = make(team), torch.randn(4, 64).bfloat16()
    first = layer(x)
    for _ in range(3):
        time.sleep(0.05)  # far longer than its threads stay awake
        assert torch.equal(layer(x), first)
    team.close()


def test_closing_ends_the_threads_and_may_be_done_twice():
    before = members()
    team = Team(4)
    assert len(members()) == len(before) + 3
    team.close()
    team.close()
    assert members() == before


def test_a_forgotten_team_goes_home():
    before = members()
    team = Team(2)
    make(team)(torch.ones(1, 64).bfloat16())
    del team
    gc.collect()
    assert members() == before


def test_an_idle_team_uses_no_processor():
    make(shared_team(2))(torch.ones(1, 64).bfloat16())
    time.sleep(0.1)
    start_s = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - start_s < 0.15


def test_there_is_one_team_of_a_size():
    assert shared_team(2) is shared_team(2)
