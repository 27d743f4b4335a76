"""A DeepSeek-V4.1 table read where it lies: the bits of a packed one, in memory and on disk."""

import os
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from imports import TINY_V41, tiny_v41_tensors, write_config, write_shards
from safetensors.torch import save_file

from engram_core import compiled
from engram_core.errors import ArtefactError, IdRangeError, TierError
from engram_core.store import in_place
from engram_core.store.disk import DiskTier
from engram_core.store.hot_cache import HotCache
from engram_core.store.in_place import InPlaceMemory
from engram_core.store.packed import PackedTier
from engram_core.tables import open_foreign
from engram_core.tables.packed_file import PackedFile
from engram_core.tables.packed_writer import PackedWriter


@pytest.fixture(params=["compiled", "plain"])
def kernels(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(compiled, "kernels", lambda: None)
        monkeypatch.setattr(compiled, "load_disk_reads", lambda: None)
    else:
        assert compiled.load()


def opened(folder, *, sharded=False, head_dim=64):
    """The table of layer 1, every pattern of payload and many scales in it."""
    config = {**TINY_V41, "engram_head_dim": head_dim, "engram_vocab_size": 300}
    tensors = tiny_v41_tensors(config)
    payload = tensors["layers.1.engram.embed.weight"].view(torch.uint8)
    payload[:256] = torch.arange(256, dtype=torch.uint8)[:, None]
    tensors["layers.1.engram.embed.scale"].view(torch.uint8)[:255, 0] = torch.arange(255)
    write_config(folder, config)
    if sharded:
        write_shards(folder, tensors)
    else:
        save_file(tensors, folder / "model.safetensors")
    return open_foreign(folder).tables[1]


def packed_tier(table, path):
    """What `table convert` makes of it."""
    with path.open("wb") as file:
        writer = PackedWriter(file, table.format, table.num_rows)
        writer.append_records(table.read_records(0, table.num_rows).numpy())
        writer.finish()
    return DiskTier(PackedFile.open(path))


def in_memory(table):
    return PackedTier(InPlaceMemory(table).data, table.format, table.num_rows)


def gathered(tier, ids, dtype=torch.bfloat16):
    out = torch.full((len(ids), tier.row_dim), 7, dtype=dtype)
    report = tier.gather(np.asarray(ids, dtype=np.int64), out)
    return out.view(torch.int16 if dtype == torch.bfloat16 else torch.int32), report


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("head_dim", [32, 64, 256])
def test_every_tier_gives_the_bits_of_the_converted_table(tmp_path, kernels, head_dim, sharded):
    table = opened(tmp_path / "v41", sharded=sharded, head_dim=head_dim)
    expected = packed_tier(table, tmp_path / "packed")
    disk, dram = DiskTier(table), in_memory(table)
    assert disk.nbytes == table.num_rows * (head_dim + head_dim // 32)
    assert dram.nbytes == expected.nbytes == table.table_bytes
    for count in (0, 1, 16, 9000):
        ids = np.random.default_rng(count).integers(0, table.num_rows, count)
        for dtype in (torch.bfloat16, torch.float32):
            bits = gathered(expected, ids, dtype)[0]
            for tier in (disk, dram):
                found, report = gathered(tier, ids, dtype)
                assert torch.equal(found, bits)
                assert report.rows_by_tier == {tier.name: count}
    everything = range(table.num_rows)
    values = table.read(0, table.num_rows).view(torch.int16)
    is_number = ~table.read(0, table.num_rows).isnan()
    for tier in (disk, dram):
        assert torch.equal(gathered(tier, everything)[0][is_number], values[is_number])


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_ids_in_any_order(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("v41")
    table = opened(folder)
    ids = data.draw(st.lists(st.integers(0, table.num_rows - 1), max_size=60))
    tiers = [DiskTier(table), in_memory(table), HotCache(DiskTier(table), capacity_rows=9)]
    bits = gathered(packed_tier(table, folder / "packed"), ids)[0]
    assert all(torch.equal(gathered(tier, ids)[0], bits) for tier in tiers)


def test_the_disk_is_asked_once_for_each_row_and_the_cache_before_it(tmp_path):
    table = opened(tmp_path)
    assert gathered(DiskTier(table), [5, 5, 9, 5])[1].transferred_bytes == 2 * 66
    cache = HotCache(DiskTier(table), capacity_rows=9)
    gathered(cache, [5, 9])
    assert gathered(cache, [9, 5])[1].rows_by_tier == {"hot": 2}


def test_a_table_is_packed_in_pieces(tmp_path, monkeypatch):
    table = opened(tmp_path)
    whole, told = InPlaceMemory(table).data, []
    monkeypatch.setattr(in_place, "_PIECE_PAGES", 2)
    assert np.array_equal(InPlaceMemory(table, told.append).data, whole)
    assert len(told) > 2
    assert sum(told) == table.table_bytes


@pytest.mark.parametrize("bad", [-1, 2**40])
def test_a_bad_id_raises_and_leaves_the_output_alone(tmp_path, bad):
    table = opened(tmp_path)
    for tier in (DiskTier(table), in_memory(table)):
        out = torch.full((2, 64), 7.0)
        with pytest.raises(IdRangeError):
            tier.gather(np.array([0, bad]), out)
        assert (out == 7).all()


@pytest.mark.parametrize("change", ["truncate", "scales", "payload", "touch"])
def test_a_file_changed_while_it_is_served_is_an_error_and_never_a_wrong_row(
    tmp_path, kernels, change
):
    opened(tmp_path)
    path = tmp_path / "model.safetensors"
    os.utime(path, ns=(0, 0))  # a clock's tick cannot hide the change
    table = open_foreign(tmp_path).tables[1]
    disk, dram = DiskTier(table), in_memory(table)
    everything = range(table.num_rows)
    bits = gathered(disk, everything)[0]
    payload, scales = table.parts
    if change == "truncate":
        os.truncate(path, min(payload.first, scales.first) + 100)
    elif change == "touch":
        os.utime(path)
    else:
        with path.open("r+b") as rewritten:
            rewritten.seek(payload.first if change == "payload" else scales.first)
            rewritten.write(b"\x55" * 100)
    with pytest.raises(TierError, match=r"^model\.safetensors(:| was)"):
        gathered(disk, everything)
    assert torch.equal(gathered(dram, everything)[0], bits)


def test_a_file_changed_before_it_is_served_is_noticed(tmp_path):
    table = opened(tmp_path)
    os.utime(tmp_path / "model.safetensors", ns=(0, 0))
    for serve in (DiskTier, InPlaceMemory):
        with pytest.raises(TierError, match=r"model\.safetensors was changed"):
            serve(table)
    os.remove(tmp_path / "model.safetensors")
    for serve in (DiskTier, InPlaceMemory):
        with pytest.raises(ArtefactError, match=r"model\.safetensors cannot be read"):
            serve(table)


def test_a_replaced_file_keeps_serving_the_old_rows(tmp_path):
    table = opened(tmp_path / "v41")
    tier, everything = DiskTier(table), range(table.num_rows)
    bits = gathered(tier, everything)[0]
    path = tmp_path / "v41" / "model.safetensors"
    shutil.copyfile(path, tmp_path / "new")
    with (tmp_path / "new").open("r+b") as new:
        new.truncate(100)
    os.replace(tmp_path / "new", path)
    assert torch.equal(gathered(tier, everything)[0], bits)


def test_values_and_scales_may_lie_in_two_files(tmp_path):
    table = opened(tmp_path / "one")
    names = [f"layers.1.engram.embed.{part}" for part in ("weight", "scale")]
    config = {**TINY_V41, "engram_head_dim": 64, "engram_vocab_size": 300}
    tensors = {name: table._source.read(name) for name in table._source.names}
    write_config(tmp_path / "two", config)
    save_file({names[1]: tensors.pop(names[1])}, tmp_path / "two" / "scales.safetensors")
    save_file(tensors, tmp_path / "two" / "rest.safetensors")
    apart = open_foreign(tmp_path / "two").tables[1]
    assert len({part.path for part in apart.parts}) == 2
    everything, tier = range(table.num_rows), DiskTier(apart)
    bits = gathered(DiskTier(table), everything)[0]
    for found in (tier, in_memory(apart)):
        assert torch.equal(gathered(found, everything)[0], bits)
    with (tmp_path / "two" / "scales.safetensors").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(TierError, match=r"^scales\.safetensors: row 0 cannot be read"):
        gathered(tier, everything)
