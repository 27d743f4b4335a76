"""A tokenizer whose ids are bytes: nothing to download, every text can be written in it."""

from __future__ import annotations


class ByteTokenizer:
    """Id 0 ends a text, id 1 is padding, id 2 + b is the byte b."""

    eos_token_id = 0
    all_special_ids = (0, 1)
    first_byte = 2

    def __init__(self, num_ids=258):
        self._num_ids = num_ids

    def __len__(self):
        return self._num_ids

    def encode(self, text):
        return [byte + self.first_byte for byte in text.encode()]

    def decode(self, ids, skip_special_tokens=True):
        special = "" if skip_special_tokens else "<{}>"
        parts, run = [], bytearray()
        for token_id in ids:
            if token_id >= self.first_byte:
                run.append(token_id - self.first_byte)
            else:
                parts += [run.decode(errors="replace"), special.format(token_id)]
                run = bytearray()
        return "".join([*parts, run.decode(errors="replace")])
