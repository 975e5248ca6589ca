"""What the models of a run have in common: nobody changes them, so copies share their parts."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict

_set = object.__setattr__
"""A frozen model's own refuses."""


class Frozen(BaseModel):
    """A model whose instances are never changed, compared by value."""

    model_config = ConfigDict(frozen=True)

    def replace(self, **update: Any) -> Self:
        """Return a copy with other values for the fields of *update*, which are not checked.

        `model_copy` does the same and copies every part besides; a step makes six copies.
        """
        new = self.__class__.__new__(self.__class__)
        _set(new, "__dict__", {**self.__dict__, **update})
        _set(new, "__pydantic_fields_set__", self.__pydantic_fields_set__ | update.keys())
        _set(new, "__pydantic_extra__", self.__pydantic_extra__)
        _set(new, "__pydantic_private__", self.__pydantic_private__)
        return new
