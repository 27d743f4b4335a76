"""A tokenizer whose ids are bytes: nothing to download, every text can be written in it."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

FIRST_BYTE = 2


class ByteTokenizer:
    """Id 0 ends a text, id 1 is padding, id 2 + b is the byte b."""

    eos_token_id = 0
    all_special_ids = (0, 1)
    first_byte = FIRST_BYTE

    def __init__(self, num_ids=258):
        self._num_ids = num_ids
        names = ["<0>", "<1>", *_byte_names()]
        model = models.BPE({name: token_id for token_id, name in enumerate(names)}, [])
        self.backend_tokenizer = Tokenizer(model)
        self.backend_tokenizer.decoder = decoders.ByteLevel()
        self.backend_tokenizer.add_special_tokens(names[:FIRST_BYTE])

    def __len__(self):
        return self._num_ids

    def encode(self, text):
        return [byte + FIRST_BYTE for byte in text.encode()]

    def decode(self, ids, skip_special_tokens=True):
        return self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


def _byte_names():
    """The printable character that stands for each byte in a byte-level vocabulary."""
    assert len(pre_tokenizers.ByteLevel.alphabet()) == 256
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    names = {byte: chr(byte) for byte in plain}
    names |= {byte: chr(256 + place) for place, byte in enumerate(others)}
    assert set(names.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    return [names[byte] for byte in range(256)]
