"""What every section of the configuration has in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen group of keys; an unknown key is refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
