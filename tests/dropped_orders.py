"""Memories whose rows of some orders are zero: what a memory without these orders must equal."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from engram_core.step import EngramStep, RowSpan
from engram_core.store.host import HostTier
from engram_core.tables import DenseRows, SparseRows

TOKENS, HISTORY, NEWEST = [5, 9, 9, 63, 0, 5, 9], [1, 2, 3], [[4, 4, 8], [1, 7], [2, 5, 63, 9]]


def rows_of(layout, layer, orders):
    """Ids of all rows of these orders."""
    config, starts = layout.config, layout.offsets[layer]
    sizes = layout.column_primes(layer)
    columns = [
        column
        for column in range(config.num_columns)
        if config.orders[column // config.num_heads] in orders
    ]
    ids = [np.arange(starts[c], starts[c] + sizes[c]) for c in columns]
    return np.concatenate([np.empty(0, dtype=np.int64), *ids])


def zeroed_tier(layout, layer, tier, orders):
    """A host tier with the rows of `tier`, those of `orders` zero."""
    rows = torch.empty(tier.num_rows, tier.row_dim, dtype=torch.bfloat16)
    tier.gather(np.arange(tier.num_rows), rows)
    rows[torch.from_numpy(rows_of(layout, layer, orders))] = 0
    return HostTier(rows)


def zeroed_content(content, orders):
    """An artefact's content whose rows of `orders` are zero (dense) or were never written."""
    tables = {}
    for layer, rows in content.tables.items():
        gone = rows_of(content.layout, layer, orders)
        if isinstance(rows, DenseRows):
            values = rows.values.clone()
            values[torch.from_numpy(gone)] = 0
            tables[layer] = DenseRows(values)
        else:
            kept = ~np.isin(rows.row_ids, gone)
            values = rows.values[torch.from_numpy(kept)]
            tables[layer] = SparseRows(rows.row_ids[kept], values, rows.num_rows)
    return replace(content, tables=tables)


def outputs(version, prefetcher):
    """What a prompt and a decode step give in every layer: hidden states, gates and statistics."""
    found, stats = [], []
    for phase in ("prefill", "decode"):
        if phase == "prefill":
            ticket = prefetcher.submit_prompt(version, TOKENS, HISTORY)
            lengths = [len(TOKENS)]
        else:
            ticket = prefetcher.submit_step(version, version.hasher.step_windows(NEWEST))
            lengths = [1] * len(NEWEST)
        edges = np.cumsum([0, *lengths])
        spans = [RowSpan(ticket, a, b) for a, b in pairwise(edges.tolist())]
        step = EngramStep(version, lengths, spans)
        generator = torch.Generator().manual_seed(1)
        for layer in version.layer_ids:
            shape = (sum(lengths), 1, version.config.hidden_size)
            hidden = step.apply(layer, torch.randn(shape, generator=generator))
            found += [hidden, step.gates[layer]]
        stats += ticket.drain_stats()
        ticket.release()
    return found, stats


def equal(found, expected):
    """Whether all tensors have the same bits."""
    return all(
        torch.equal(a.view(torch.int32), b.view(torch.int32))
        for a, b in zip(found, expected, strict=True)
    )
