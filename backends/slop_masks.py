"""The slop policy's class masks of an engine's vocabulary: on the host, and in device memory once a sequence asks for them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backends.decode.slop_masks import Masks, masks, read_list
from backends.device import Device

if TYPE_CHECKING:
    from backends.config import DecodeConfig
    from backends.model.mtp import Drafter
    from backends.model.tokenizer import Tokenizer


class ClassMasks:
    """Of all ids, and of those that a drafter's head knows; each is made once, when first asked for."""

    def __init__(self, tokenizer: Tokenizer, drafter: Drafter | None, config: DecodeConfig) -> None:
        self._tokenizer, self._drafter = tokenizer, drafter
        self._lists = config.slop_lexicon, config.slop_openers
        self._on_device: dict[bool, Any] = {}

    @cached_property
    def host(self) -> Masks:
        """uint32 [n_vocab]. Raises BadValue for a list that cannot be read, or that does not fit the vocabulary."""
        lexicon, openers = (() if path is None else read_list(Path(path)) for path in self._lists)
        return masks(self._tokenizer, lexicon, openers, self._lists)

    def padded(self, head: bool = False) -> NDArray[np.uint32]:
        """The same, padded with 0 to whole row blocks. head: of the draft head's rows, in their order."""
        subset = self._subset(head)
        found = self.host if subset is None else self.host[subset]
        return np.pad(found, (0, -len(found) % 16))

    def on_device(self, device: Device, head: bool = False) -> Any:
        """The padded masks in device memory; a head over the whole vocabulary shares the model's. Raises DeviceError when memory runs out."""
        if (key := self._subset(head) is not None) not in self._on_device:
            self._on_device[key] = device.put(self.padded(head))
        return self._on_device[key]

    def _subset(self, head: bool) -> NDArray[np.int32] | None:
        return None if self._drafter is None or not head else self._drafter.vocabulary
