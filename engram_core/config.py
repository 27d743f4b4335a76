"""EngramConfig: the algorithm of one Engram memory, as immutable data.

Knows nothing about tokenizers, tensors or where rows are stored. The two public configuration
dialects (the January 2026 demo and DeepSeek-V4.1) are read here under their own key names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from engram_core.errors import ConfigError

Form = Literal["demo", "v41"]
MultiplierOrder = Literal["newest_first", "oldest_first"]

# engram_demo_v1.py: defaults of EngramConfig and BackBoneConfig
DEMO_DEFAULTS: Mapping[str, Any] = {
    "engram_vocab_size": [129280 * 5, 129280 * 5],
    "max_ngram_size": 3,
    "n_embed_per_ngram": 512,
    "n_head_per_ngram": 8,
    "layer_ids": [1, 15],
    "pad_id": 2,
    "seed": 0,
    "kernel_size": 4,
    "hidden_size": 1024,
    "hc_mult": 4,
}
# keys of the demo's configuration that do not change the memory
DEMO_IGNORED = frozenset({"tokenizer_name_or_path", "vocab_size", "num_layers"})

# DeepSeek-V4.1-Flash: dimensions that its configuration keeps outside the engram_* keys
V41_DEFAULTS: Mapping[str, Any] = {"hidden_size": 5120, "hc_mult": 4, "rms_norm_eps": 1e-20}
V41_REQUIRED = (
    "engram_layer_ids",
    "engram_max_ngram_size",
    "engram_n_heads",
    "engram_head_dim",
    "engram_vocab_size",
)
V41_OPTIONAL = frozenset(
    {
        "engram_num_embeddings",
        "engram_compressed_vocab_size",
        "engram_pad_token_id",
        "engram_pad_id",
        "engram_seed",
    }
)
# declared departures from the two published forms
VARIANTS = frozenset(
    {
        "multiplier_order",
        "lags",
        "num_branches",
        "conv_dilation",
        "folds_tokens",
        "keeps_unmapped_ids",
    }
)
DEMO_NORM_EPS = 1.1920928955078125e-07  # torch.finfo(float32).eps, what nn.RMSNorm uses unasked


@dataclass(frozen=True, slots=True)
class EngramConfig:
    """The constants that define an Engram memory (engram-spec: sections 2 to 5).

    Attributes:
        form: ``"demo"`` (short convolution, biases) or ``"v41"`` (neither, float32 throughout).
        layer_ids: decoder layers that read the memory, in the order that defines their primes.
        orders: n-gram orders, ascending, each >= 2.
        num_heads: hash heads per order.
        rows_per_head: where the prime search of each order starts; one entry per order.
        head_dim: width of a row, in values.
        hidden_size: width of the backbone's hidden state.
        num_streams: hidden streams G (hyper-connections); 1 for ordinary models.
        pad_id: RAW token id whose class fills the places before a sequence starts.
        seed: seed of the multipliers.
        kernel_size: taps of the short convolution (demo form only).
        norm_eps: epsilon of the gate's two norms.
        use_bias: whether the demo form's projections have biases.
        min_hit_orders: orders whose rows must ALL be non-zero for a position to contribute;
            empty means that every position contributes. Not part of the paper: an artefact
            that was trained with this rule declares it.
        compressed_size: number of token classes the constants were made for, when known.
        expected_rows: table rows per layer that a published configuration declares, when known.
        multiplier_order: which token of an n-gram the first multiplier belongs to.
        lags: per order, how many tokens before the current one its n-grams end; empty for none.
        num_branches: gates per hidden stream, each with its own key and convolution; what they
            give is summed into the stream.
        conv_dilation: tokens between two taps of the convolution; None for the longest order.
        folds_tokens: whether tokens that read the same share a class; otherwise each id is one.
        keeps_unmapped_ids: token ids beyond the class map are classes of their own (they are
            refused otherwise).
    """

    form: Form
    layer_ids: tuple[int, ...]
    orders: tuple[int, ...]
    num_heads: int
    rows_per_head: tuple[int, ...]
    head_dim: int
    hidden_size: int
    num_streams: int = 1
    pad_id: int = 2
    seed: int = 0
    kernel_size: int = 4
    norm_eps: float = DEMO_NORM_EPS
    use_bias: bool = True
    min_hit_orders: tuple[int, ...] = ()
    compressed_size: int | None = None
    expected_rows: tuple[int, ...] | None = None
    multiplier_order: MultiplierOrder = "newest_first"
    lags: tuple[int, ...] = ()
    num_branches: int = 1
    conv_dilation: int | None = None
    folds_tokens: bool = True
    keeps_unmapped_ids: bool = False

    def __post_init__(self) -> None:
        check(self.form in ("demo", "v41"), "form", self.form, '"demo" or "v41"')
        check(bool(self.layer_ids), "layer_ids", self.layer_ids, "at least one layer")
        check(
            len(set(self.layer_ids)) == len(self.layer_ids) and min(self.layer_ids) >= 0,
            "layer_ids",
            self.layer_ids,
            "distinct layers >= 0",
        )
        check(
            bool(self.orders)
            and self.orders == tuple(sorted(set(self.orders)))
            and self.orders[0] >= 2,
            "orders",
            self.orders,
            "distinct ascending orders >= 2",
        )
        check(
            len(self.rows_per_head) == len(self.orders) and min(self.rows_per_head) >= 2,
            "rows_per_head",
            self.rows_per_head,
            f"one number >= 2 for each of the {len(self.orders)} orders",
        )
        for name in ("num_heads", "head_dim", "hidden_size", "num_streams", "kernel_size"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "a number >= 1")
        check(self.pad_id >= 0, "pad_id", self.pad_id, "a token id >= 0")
        check(self.norm_eps >= 0, "norm_eps", self.norm_eps, "a number >= 0")
        check(
            set(self.min_hit_orders) <= set(self.orders),
            "min_hit_orders",
            self.min_hit_orders,
            f"a subset of the orders {self.orders}",
        )
        self._check_variants()

    def _check_variants(self) -> None:
        check(
            self.multiplier_order in ("newest_first", "oldest_first"),
            "multiplier_order",
            self.multiplier_order,
            '"newest_first" or "oldest_first"',
        )
        room = tuple(self.max_order - order for order in self.orders)
        check(
            not self.lags
            or (
                len(self.lags) == len(room)
                and all(0 <= lag <= most for lag, most in zip(self.lags, room, strict=True))
            ),
            "lags",
            self.lags,
            f"none, or one number for each order, at most {room}",
        )
        check(
            self.num_branches == 1 or (self.num_branches > 1 and self.num_streams == 1),
            "num_branches",
            self.num_branches,
            "1, or more in one hidden stream",
        )
        dilation = self.conv_dilation
        check(dilation is None or dilation >= 1, "conv_dilation", dilation, "a number >= 1")

    @property
    def max_order(self) -> int:
        """N: the longest n-gram, in tokens."""
        return self.orders[-1]

    @property
    def num_columns(self) -> int:
        """M: rows that one token reads in one layer."""
        return len(self.orders) * self.num_heads

    @property
    def memory_dim(self) -> int:
        """F: width of the concatenated rows of one token."""
        return self.num_columns * self.head_dim

    @property
    def num_gates(self) -> int:
        """Gates per token and layer: one for each branch of each hidden stream."""
        return self.num_streams * self.num_branches

    @property
    def dilation(self) -> int:
        """Tokens between two taps of the convolution."""
        return self.max_order if self.conv_dilation is None else self.conv_dilation

    @property
    def conv_history(self) -> int:
        """Earlier convolution inputs that one output needs: (K-1)*dilation, 0 in the v41 form."""
        return (self.kernel_size - 1) * self.dilation if self.form == "demo" else 0

    @property
    def conv_channels(self) -> int:
        """Width of one convolution input."""
        return self.num_gates * self.hidden_size

    def to_dict(self) -> dict[str, Any]:
        """This configuration as JSON-ready data; `from_dict` reads it back.

        Keys of `VARIANTS` at their defaults are left out: a memory's id is derived from this, and
        memories from before these keys keep theirs.
        """
        defaults = {f.name: f.default for f in fields(self) if f.name in VARIANTS}
        return {
            key: value
            for key, value in asdict(self).items()
            if key not in defaults or value != defaults[key]
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote. Raises ConfigError on unknown or missing keys."""
        names = {field.name for field in fields(cls)}
        refuse_unknown(set(data) - names, names)
        values: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in data.items()
        }
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"the Engram configuration is incomplete: {error}") from None

    @classmethod
    def from_demo(cls, data: Mapping[str, Any]) -> Self:
        """Read the demo's key names (EngramConfig and BackBoneConfig in one mapping).

        Keys left out take the demo's own defaults. Raises ConfigError on unknown keys.
        """
        known = set(DEMO_DEFAULTS) | DEMO_IGNORED
        refuse_unknown(set(data) - known, known)
        values = {**DEMO_DEFAULTS, **data}
        orders = tuple(range(2, values["max_ngram_size"] + 1))
        num_heads, width = values["n_head_per_ngram"], values["n_embed_per_ngram"]
        check(
            width % num_heads == 0, "n_embed_per_ngram", width, f"a multiple of {num_heads} heads"
        )
        return cls(
            form="demo",
            layer_ids=tuple(values["layer_ids"]),
            orders=orders,
            num_heads=num_heads,
            rows_per_head=tuple(values["engram_vocab_size"]),
            head_dim=width // num_heads,
            hidden_size=values["hidden_size"],
            num_streams=values["hc_mult"],
            pad_id=values["pad_id"],
            seed=values["seed"],
            kernel_size=values["kernel_size"],
        )

    @classmethod
    def from_v41(cls, data: Mapping[str, Any]) -> Self:
        """Read a DeepSeek-V4.1 model configuration (its ``engram_*`` keys and dimensions).

        Other keys of the model's configuration are not Engram's and are left alone.
        Raises ConfigError on a missing or unknown ``engram_*`` key.
        """
        known = V41_OPTIONAL | set(V41_REQUIRED)
        refuse_unknown({k for k in data if k.startswith("engram_")} - known, known)
        missing = [key for key in V41_REQUIRED if key not in data]
        if missing:
            raise ConfigError(f"a DeepSeek-V4.1 configuration needs {', '.join(missing)}")
        values = {**V41_DEFAULTS, **data}
        orders = tuple(range(2, values["engram_max_ngram_size"] + 1))
        rows = values.get("engram_num_embeddings")
        return cls(
            form="v41",
            layer_ids=tuple(values["engram_layer_ids"]),
            orders=orders,
            num_heads=values["engram_n_heads"],
            rows_per_head=(values["engram_vocab_size"],) * len(orders),
            head_dim=values["engram_head_dim"],
            hidden_size=values["hidden_size"],
            num_streams=values["hc_mult"],
            pad_id=values.get("engram_pad_token_id", values.get("engram_pad_id", 2)),
            seed=values.get("engram_seed", 0),
            norm_eps=values["rms_norm_eps"],
            use_bias=False,
            compressed_size=values.get("engram_compressed_vocab_size"),
            expected_rows=None if rows is None else tuple(rows),
        )


def check(ok: bool, name: str, value: object, accepted: str) -> None:
    """Raise the ConfigError of a field whose value is not accepted."""
    if not ok:
        raise ConfigError(f"{name} is {value!r}; accepted: {accepted}")


def refuse_unknown(unknown: set[str], known: set[str] | frozenset[str]) -> None:
    """Raise the ConfigError of keys that nobody knows."""
    if unknown:
        raise ConfigError(
            f"unknown configuration key(s) {', '.join(sorted(unknown))}; "
            f"accepted: {', '.join(sorted(known))}"
        )
