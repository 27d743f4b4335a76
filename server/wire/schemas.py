"""Request bodies of the native routes: strict, bounded, and deaf to what they do not know.

The field names and meanings are those of Hugging Face's text-generation-inference; `min_p`,
`ignore_eos`, `include_stop_str_in_output`, `priority`, `engram` and `engram_details` are additions.
Knows nothing about tokens or the model's limits.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

MAX_STOP_SEQUENCES = 4
MAX_STOP_CHARS = 64
MAX_TOP_N_TOKENS = 5
MAX_INT32 = 2**31 - 1
MAX_SEED = 2**64 - 1
MAX_PRIORITY = 100
DEFAULT_MAX_NEW_TOKENS = 100

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


class Strict(BaseModel):
    """No unknown keys, no conversions, no NaN or infinity."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, frozen=True, hide_input_in_errors=True
    )


class EngramOptions(Strict):
    """What a request may say about its memory; None means "as the server does"."""

    enabled: bool | None = Field(default=None, description="False: answer without the memory.")
    gate_scale: float | None = Field(
        default=None, ge=0, le=10, description="Factor on what the memory adds; 1 is as trained."
    )


class GenerateParameters(Strict):
    """How to generate. Every field may be left out or null."""

    max_new_tokens: int | None = Field(default=None, ge=1, le=MAX_INT32)
    temperature: float | None = Field(default=None, gt=0, le=100)
    top_k: int | None = Field(default=None, ge=1, le=MAX_INT32)
    top_p: float | None = Field(default=None, gt=0, le=1)
    typical_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=100)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    do_sample: bool | None = None
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    stop: list[StopString] | None = Field(default=None, max_length=MAX_STOP_SEQUENCES)
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    truncate: int | None = Field(default=None, ge=1, le=MAX_INT32)
    return_full_text: bool | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    top_n_tokens: int | None = Field(default=None, ge=0, le=MAX_TOP_N_TOKENS)
    priority: int | None = Field(default=None, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    engram: EngramOptions | None = None
    engram_details: bool | None = None
    # known to clients of text-generation-inference, accepted only where they change nothing
    best_of: Any = Field(default=None, description="Only 1.")
    watermark: Any = Field(default=None, description="Only false.")
    grammar: Any = Field(default=None, description="Only null.")
    adapter_id: Any = Field(default=None, description="Only null.")

    def unsupported(self) -> str | None:
        """The first field that asks for something this server does not do."""
        asked = {
            "best_of": self.best_of is not None and (self.best_of is True or self.best_of != 1),
            "watermark": self.watermark is not None and self.watermark is not False,
            "grammar": self.grammar is not None,
            "adapter_id": self.adapter_id is not None,
        }
        return next((name for name, wrong in asked.items() if wrong), None)

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn: `do_sample`, or any setting that reshapes the distribution.

        So does text-generation-inference: a temperature alone turns sampling on.
        """
        shares = (self.top_p, self.typical_p)
        return bool(
            self.do_sample
            or self.temperature not in (None, 1.0)
            or self.top_k is not None
            or any(share is not None and share < 1 for share in shares)
            or self.min_p
        )


class GenerateRequest(Strict):
    """Body of /generate, /generate_stream and /."""

    inputs: str = Field(min_length=1, description="The prompt.")
    parameters: GenerateParameters | None = None
    stream: bool | None = Field(
        default=None,
        description="Chooses the form on /; elsewhere only the route's own form is accepted.",
    )
    engram: EngramOptions | None = Field(
        default=None,
        description="The same as `parameters.engram`; only one of the two may be given.",
    )

    @property
    def settled_parameters(self) -> GenerateParameters:
        """The parameters, with `engram` taken from wherever it was given.

        Raises:
            ValueError: it was given twice.
        """
        parameters = self.parameters or GenerateParameters()
        if self.engram is None:
            return parameters
        if parameters.engram is not None:
            raise ValueError(
                "`engram` and `parameters.engram` are both given; accepted: one of them"
            )
        return parameters.model_copy(update={"engram": self.engram})
