"""Settings: where values come from, and the sentence for every mistake."""

import pytest
from pydantic import ValidationError

from server.backend import tuning_of
from server.config import Settings, SettingsFileError, unknown_variables
from server.engine.tuning import Tuning
from server.flags import accepted, bounds, choices, explain, flag, variable
from server.sizes import format_size, parse_size


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in Settings.model_fields:
        monkeypatch.delenv(variable(name), raising=False)


def test_flag_wins_over_environment_over_file_over_default(monkeypatch, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("port: 1\nmax-num-seqs: 2\nhost: 127.0.0.2\n")
    monkeypatch.setenv("ENGRAM_SERVER_PORT", "3")
    monkeypatch.setenv("ENGRAM_SERVER_HOST", "127.0.0.3")
    settings = Settings(port="4", config=str(file))
    assert (settings.port, settings.host, settings.max_num_seqs) == (4, "127.0.0.3", 2)
    assert settings.max_queue_len == 128


def test_the_file_may_come_from_the_environment(monkeypatch, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("prefetch: off\ncors_origin: [https://a.example, 'https://b.example']\n")
    monkeypatch.setenv("ENGRAM_SERVER_CONFIG", str(file))
    settings = Settings()
    assert settings.prefetch == "off"
    assert settings.cors_origin == ("https://a.example", "https://b.example")


def test_texts_become_values(tmp_path):
    (tmp_path / "c.json").write_text('{"tiers": ["host"]}')
    settings = Settings(
        kv_cache_memory="2GiB",
        max_body_size="1 MB",
        cors_origin="https://a.example, *",
        engram_config=f"@{tmp_path / 'c.json'}",
        request_timeout="1.5",
    )
    assert (settings.kv_cache_memory, settings.max_body_size) == (2 * 2**30, 10**6)
    assert settings.cors_origin == ("https://a.example", "*")
    assert settings.engram_config == {"tiers": ["host"]}
    assert settings.request_timeout == 1.5


@pytest.mark.parametrize("word", ["on", "off"])
def test_a_bare_on_or_off_of_the_file_is_the_word(word, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text(f"deterministic: {word}\ngraphs: {word}\nquantize: none\n")
    settings = Settings(config=file)
    assert (settings.deterministic, settings.graphs, settings.quantize) == (word, word, "none")


def test_the_engine_is_told_how_to_compute():
    chosen = {"quantize": "int8", "deterministic": "on", "kernels": "torch", "graphs": "off"}
    assert tuning_of(Settings()) == Tuning()
    assert tuning_of(Settings(**chosen)) == Tuning("int8", True, "torch", "off")


MISTAKES = [
    ({"port": "70000"}, "--port is '70000'; accepted: a whole number from 0 to 65535"),
    ({"port": "x"}, "--port is 'x'; accepted: a whole number from 0 to 65535"),
    ({"dtype": "int4"}, "--dtype is 'int4'; accepted: auto, float32, bfloat16, float16"),
    ({"quantize": "int3"}, "--quantize is 'int3'; accepted: none, int8, int4, auto"),
    ({"kernels": "numba"}, "--kernels is 'numba'; accepted: auto, native, torch"),
    ({"deterministic": "yes"}, "--deterministic is 'yes'; accepted: on, off"),
    ({"device": "tpu"}, "--device is 'tpu'; accepted: auto, simulated, cpu"),
    ({"header_timeout": "nan"}, "--header-timeout is 'nan'; accepted: a number from 0.1 to 600"),
    ({"kv_cache_memory": "lots"}, "--kv-cache-memory is 'lots'; accepted: a size from 1 MiB"),
    ({"max_body_size": "65MiB"}, "--max-body-size is"),
    ({"api_key": ""}, "--api-key; accepted: a text of 1 to 512 characters"),
    ({"cors_origin": "example.org"}, "--cors-origin is"),
    ({"engram_config": "{"}, "--engram-config is '{'; accepted: a JSON object"),
    ({"root_path": "engram"}, "--root-path is 'engram'; accepted: a path such as /engram"),
    ({"ssl_certfile": "a.pem"}, "ssl_certfile and ssl_keyfile are needed together"),
]


@pytest.mark.parametrize(("given", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence(given, sentence):
    with pytest.raises(ValidationError) as caught:
        Settings(**given)
    told = explain(caught.value, given, {})
    assert told.startswith(sentence)
    assert "\n" not in told


def test_a_mistake_names_where_it_was_made(monkeypatch, tmp_path):
    monkeypatch.setenv("ENGRAM_SERVER_PORT", "tcp://10.0.0.1:80")
    file = tmp_path / "c.yaml"
    file.write_text("max_num_seqs: 0\nmax_sequences: 3\n")
    with pytest.raises(ValidationError) as caught:
        Settings(config=file)
    told = explain(caught.value, {}, {"ENGRAM_SERVER_PORT": ""})
    assert "ENGRAM_SERVER_PORT is 'tcp://10.0.0.1:80'" in told
    assert "max_num_seqs in the settings file is '0'" in told
    assert "the settings file has no use for 'max_sequences'" in told


def test_an_empty_key_in_the_environment_does_not_open_the_server(monkeypatch):
    monkeypatch.setenv("ENGRAM_SERVER_API_KEY", "")
    with pytest.raises(ValidationError):
        Settings()


@pytest.mark.parametrize("content", ["- a\n", "a: [", "\x00", "1: 2\n"])
def test_a_file_that_holds_no_settings_is_refused(tmp_path, content):
    file = tmp_path / "c.yaml"
    file.write_text(content)
    with pytest.raises(SettingsFileError, match=r"c\.yaml"):
        Settings(config=file)


def test_keys_come_from_flag_and_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\n one \n\ntwo\n")
    assert Settings(api_key="zero", api_key_file=file).api_keys() == ("zero", "one", "two")
    file.write_text("# nothing\n")
    with pytest.raises(SettingsFileError, match="holds no key"):
        Settings(api_key_file=file).api_keys()
    with pytest.raises(SettingsFileError, match="cannot read"):
        Settings(api_key_file=tmp_path / "missing").api_keys()


def test_keys_stay_out_of_texts():
    assert "hidden-key" not in repr(Settings(api_key="hidden-key"))


def test_every_number_has_two_bounds_and_every_setting_a_text():
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert accepted(name)
        if "number" in accepted(name) or "size" in accepted(name).split():
            assert {"ge", "le"} <= set(bounds(field)), name
        if field.annotation in (int, float):
            assert {"ge", "le"} <= set(bounds(field)), name


def test_spellings():
    assert flag("max_num_seqs") == "--max-num-seqs"
    assert flag("model") == "MODEL"
    assert variable("port") == "ENGRAM_SERVER_PORT"
    assert choices(Settings.model_fields["prefetch"]) == ("on", "off")


def test_variables_that_name_no_setting_are_found():
    environ = {"ENGRAM_SERVER_PORT": "1", "ENGRAM_SERVER_PROT": "1", "HOME": "/"}
    assert unknown_variables(environ) == ["ENGRAM_SERVER_PROT"]


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("2MB", 2 * 10**6), ("1.5 GiB", 3 * 2**29), ("7b", 7)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1XB", "nan", "1e3", "9" * 30])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="accepted"):
        parse_size(text)


def test_sizes_are_shown_in_the_largest_unit():
    assert [format_size(n) for n in (5, 2048, 3 * 2**29)] == ["5 bytes", "2 KiB", "1.5 GiB"]
