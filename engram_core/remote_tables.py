"""The tables of an artefact as row servers have them: servers and shards, wired.

Asks every server at start what it serves, so that a wrong one is found before the first request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engram_core.errors import EngramError
from engram_core.memory_config import MemoryConfig
from engram_core.store.base import Tier
from engram_core.store.flight_source import FlightRowSource
from engram_core.store.patient_source import PatientRowSource
from engram_core.store.remote import RemoteTier
from engram_core.store.row_source import RowSource, check_description, row_table
from engram_core.store.row_token import read_row_token
from engram_core.store.sharded import ShardedRowSource
from engram_core.tables import Artefact

_START_TIMEOUT_S = 10.0  # to answer what it serves; a row server may be starting too


def open_remote(
    artefact: Artefact, memory: MemoryConfig
) -> tuple[Mapping[int, Tier], Callable[[], None]]:
    """A tier for every layer, and what closes the connections.

    Args:
        artefact: what the servers have to serve; its own tables are not read.
        memory: who they are and how patient to be.

    Raises:
        ConfigError: an address or the token's file is wrong, or pyarrow is missing.
        MismatchError: a server serves something else. TierError: one cannot be reached.
    """
    file = memory.row_token_file
    token = None if file is None else read_row_token("row_token_file", file)
    servers = [_open_server(each, artefact, memory, token) for each in memory.row_servers]
    source = ShardedRowSource(servers)
    try:
        _check(source, artefact)
    except EngramError:
        source.close()
        raise
    tiers = {}
    for layer in artefact.config.layer_ids:
        tiers[layer] = RemoteTier(
            source,
            row_table(layer),
            artefact.layout.rows[layer],
            artefact.config.head_dim,
            timeout_s=max(server.longest_s for server in servers),
            servers=servers,
        )
    return tiers, source.close


def _open_server(
    address: str, artefact: Artefact, memory: MemoryConfig, token: str | None
) -> PatientRowSource:
    """One server, with a breaker that all layers share: they depend on it alike."""
    return PatientRowSource(
        FlightRowSource(address, artefact.content, token=token),
        timeout_s=memory.row_timeout_s,
        retries=memory.row_retries,
        label=address,
    )


def _check(source: RowSource, artefact: Artefact) -> None:
    shapes = {
        row_table(layer): (rows, artefact.config.head_dim)
        for layer, rows in artefact.layout.rows.items()
    }
    found = source.describe(_START_TIMEOUT_S)
    check_description(found, artefact.content, shapes, source.name)
