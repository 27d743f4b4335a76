"""Settings: everything an operator can say, with bounds and help texts.

A value comes from the command line, else from the environment (``ENGRAM_SERVER_*``), else from
the ``--config`` file, else from the default written here. Knows nothing about argparse, models or
the network.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from server.sizes import ByteSize

ENV_PREFIX = "ENGRAM_SERVER_"
CACHE_VARIABLE = f"{ENV_PREFIX}CACHE_DIR"  # read before there are settings, by the downloader
_MIB, _TIB = 2**20, 2**40


class SettingsFileError(ValueError):
    """A file named by a setting cannot be used; the message is for the operator."""


def _split_commas(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _on_off(value: Any) -> Any:
    """YAML reads a bare ``on`` as true."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _json_or_file(value: Any) -> Any:
    """A JSON object from its text or, after ``@``, from the file of that name."""
    if not isinstance(value, str):
        return value
    try:
        text = Path(value[1:]).read_text("utf-8") if value.startswith("@") else value
        return json.loads(text)
    except (OSError, ValueError) as error:
        raise ValueError("accepted: a JSON object, or @ and the name of a file with one") from error


class Settings(BaseSettings):
    """All settings of one server. Immutable; construct with `load_settings`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        hide_input_in_errors=True,
    )

    # what is served
    model: str | None = Field(
        default=None,
        max_length=4096,
        description="Model to serve: a local folder or a Hugging Face id; "
        "without it the small default model.",
    )
    revision: str | None = Field(
        default=None, max_length=256, description="Branch, tag or commit of the model on the hub."
    )
    served_model_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Name that answers carry instead of MODEL.",
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|simulated|cpu|(cuda|npu)(:\d{1,3})?)$",
        description="Where the model runs: auto, cpu, cuda, cuda:N, npu, npu:N, "
        "or simulated (the accelerator code path on a CPU).",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Number format of the model's weights."
    )

    graphs: Annotated[Literal["auto", "on", "off"], BeforeValidator(_on_off)] = Field(
        default="auto",
        description="Whether decode steps are captured as graphs and replayed: where the device "
        "has graphs (auto), or not at all (off); on refuses to start without.",
    )
    quantize: Literal["none", "int8", "int4", "auto"] = Field(
        default="none",
        description="Number format of the linear layers' weights on a CPU; auto holds int8 beside "
        "bfloat16 and picks by batch size, from a measurement at load.",
    )
    deterministic: Annotated[Literal["on", "off"], BeforeValidator(_on_off)] = Field(
        default="off",
        description="Whether an answer's bits never depend on which requests run beside it.",
    )
    kernels: Literal["auto", "native", "torch"] = Field(
        default="auto",
        description="What computes the layers on a CPU: native compiled kernels, torch's, or "
        "native where they can run (auto).",
    )

    # the Engram memory
    engram: str = Field(
        default="auto",
        min_length=1,
        max_length=4096,
        description="The memory: a path, auto (the artefact in --engram-dir that was made for "
        "the model) or none.",
    )
    engram_dir: Path | None = Field(
        default=None,
        description="Folder of artefacts that --engram looks in; default: the packaged one.",
    )
    engram_config: Annotated[dict[str, Any] | None, NoDecode, BeforeValidator(_json_or_file)] = (
        Field(
            default=None, description="Memory tiers as a JSON object, or @FILE; keys in memory.md."
        )
    )
    prefetch: Annotated[Literal["on", "off"], BeforeValidator(_on_off)] = Field(
        default="on", description="Look rows up beside compute (on) or when a layer asks (off)."
    )
    prefetch_audit: float = Field(
        default=0,
        ge=0,
        le=1,
        description="Share of the lookups that is read again from the tokens themselves and "
        "compared when compute takes the rows; see engram_prefetch_audit_rows_total.",
    )

    # the engine's limits
    max_model_len: int | None = Field(
        default=None,
        ge=16,
        le=2**20,
        description="Longest prompt plus answer, in tokens; default: the model's own, "
        "at most 2048.",
    )
    max_num_seqs: int = Field(
        default=16, ge=1, le=1024, description="Requests that generate together."
    )
    max_num_batched_tokens: int = Field(
        default=512, ge=16, le=65536, description="Tokens of one engine step."
    )
    max_decode_slowdown: float = Field(
        default=2.0,
        ge=1.1,
        le=1000,
        description="How many times longer a step may take for the sake of prompts while "
        "requests generate; longer while more wait for their first token than generate.",
    )
    prefix_cache: Annotated[Literal["on", "off"], BeforeValidator(_on_off)] = Field(
        default="on", description="Start a request with what an earlier one has computed."
    )
    max_queue_len: int = Field(
        default=128,
        ge=1,
        le=100_000,
        description="Requests that may wait; one more is answered 429.",
    )
    max_queued_tokens: int = Field(
        default=262_144, ge=16, le=10**9, description="Prompt tokens that may wait."
    )
    kv_cache_memory: ByteSize | None = Field(
        default=None,
        ge=_MIB,
        le=16 * _TIB,
        description="Memory for keys and values, e.g. 2GiB; default: what --max-num-seqs needs.",
    )

    # the listener
    host: str = Field(
        default="127.0.0.1", min_length=1, max_length=255, description="Address to bind."
    )
    port: int = Field(default=8000, ge=0, le=65535, description="Port to bind; 0 takes a free one.")
    root_path: str = Field(
        default="",
        pattern=r"^(/[A-Za-z0-9._~-]+)*$",
        max_length=256,
        description="Path prefix that a proxy in front strips, e.g. /engram.",
    )
    cors_origin: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_commas)] = Field(
        default=(),
        max_length=64,
        description="Origins that browsers may call from, comma separated.",
    )
    ssl_certfile: Path | None = Field(
        default=None, description="PEM certificate chain; turns TLS on."
    )
    ssl_keyfile: Path | None = Field(default=None, description="PEM private key of --ssl-certfile.")

    # who may call
    api_key: SecretStr | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="Key that callers send as a bearer token.",
    )
    api_key_file: Path | None = Field(
        default=None, description="File with one accepted key per line; # starts a comment."
    )
    admin_key: SecretStr | None = Field(
        default=None,
        min_length=16,
        max_length=512,
        description="Key of /admin, as a bearer token; without it there is no /admin.",
    )
    metrics_auth: Annotated[Literal["auto", "on", "off"], BeforeValidator(_on_off)] = Field(
        default="auto",
        description="Whether /metrics needs the key; auto: only when bound beyond loopback.",
    )

    # limits of one request
    max_body_size: ByteSize = Field(
        default=2_000_000, ge=1024, le=64 * _MIB, description="Largest request body."
    )
    max_header_size: ByteSize = Field(
        default=65_536, ge=1024, le=_MIB, description="Largest request head (line and headers)."
    )
    max_prompt_chars: int = Field(
        default=1_000_000, ge=1, le=64 * _MIB, description="Longest prompt in characters."
    )
    header_timeout: float = Field(
        default=10.0, ge=0.1, le=600, description="Seconds a request's headers may take to arrive."
    )
    body_timeout: float = Field(
        default=30.0, ge=0.1, le=3600, description="Seconds a request's body may take to arrive."
    )
    queue_timeout: float = Field(
        default=60.0, ge=0.1, le=86_400, description="Seconds a request may wait; then it gets 503."
    )
    request_timeout: float = Field(
        default=600.0, ge=0.1, le=86_400, description="Seconds a request may take in all; then 504."
    )
    stream_stall_timeout: float = Field(
        default=30.0, ge=0.1, le=3600, description="Seconds a reader may leave a stream unread."
    )

    # running
    shutdown_timeout: float = Field(
        default=30.0, ge=0, le=3600, description="Seconds that running requests get after SIGTERM."
    )
    engine_stall_timeout: float = Field(
        default=60.0,
        ge=1,
        le=3600,
        description="Age of the last engine step that makes /ready 503.",
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Form of the log lines."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe log lines that are written."
    )
    config: Path | None = Field(
        default=None, description="YAML file with settings, one `name: value` per line."
    )

    @field_validator("cors_origin")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        if any(o != "*" and not o.startswith(("http://", "https://")) for o in origins):
            raise ValueError("accepted: * or origins such as https://example.org")
        return origins

    @model_validator(mode="after")
    def _check_tls(self) -> Settings:
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ValueError("ssl_certfile and ssl_keyfile are needed together")
        return self

    @model_validator(mode="after")
    def _check_batch(self) -> Settings:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; accepted: at least "
                f"max_num_seqs ({self.max_num_seqs}), one token of every running request"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line, environment, file; no dotenv and no secret folder."""
        given = init_settings()
        path = given.get("config") or os.environ.get(f"{ENV_PREFIX}CONFIG")
        values = read_config_file(Path(path)) if path else {}
        return init_settings, env_settings, InitSettingsSource(settings_cls, values)

    @property
    def model_name(self) -> str:
        """The model's name as far as the settings tell it: never a path of this machine."""
        if self.served_model_name or not self.model:
            return self.served_model_name or "default"
        is_path = self.model.startswith(("/", ".", "~")) or Path(self.model).is_dir()
        return Path(self.model).name if is_path else self.model

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the listener."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def api_keys(self) -> tuple[str, ...]:
        """All accepted keys; empty means that every caller is served.

        Raises:
            SettingsFileError: the key file is unreadable or holds no key.
        """
        keys = [self.api_key.get_secret_value()] if self.api_key else []
        if self.api_key_file is not None:
            keys += _read_keys(self.api_key_file)
        return tuple(keys)

    def admin_keys(self) -> tuple[str, ...]:
        """The key of /admin, if there is one."""
        return (self.admin_key.get_secret_value(),) if self.admin_key else ()


def read_config_file(path: Path) -> dict[str, Any]:
    """Settings from a YAML file; dashes in names count as underscores.

    Raises:
        SettingsFileError: the file is unreadable or is not a mapping.
    """
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or "it is not YAML text"
        raise SettingsFileError(f"cannot read the settings file {path}: {reason}") from None
    if data is None:
        return {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise SettingsFileError(f"the settings file {path} must hold `name: value` lines")
    return {key.replace("-", "_"): value for key, value in data.items() if key != "config"}


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that name no setting (misspelt, or set by a container host)."""
    known = {f"{ENV_PREFIX}{name}".upper() for name in Settings.model_fields} | {CACHE_VARIABLE}
    return sorted(key for key in environ if key.startswith(ENV_PREFIX) and key not in known)


def _read_keys(path: Path) -> list[str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise SettingsFileError(f"cannot read the key file {path}: {reason}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise SettingsFileError(f"the key file {path} holds no key")
    return keys
