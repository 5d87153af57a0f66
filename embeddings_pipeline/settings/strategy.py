"""How a record becomes a text: a corpus YAML's `strategies`."""

import string
from typing import Self

from pydantic import model_validator

from embeddings_pipeline.errors import did_you_mean
from embeddings_pipeline.settings.spec import NAME_PATTERN, Spec

BUILT_IN_STRATEGIES = ("full_record",)


class StrategySpec(Spec):
    """How a record becomes a text: the built-in `full_record`, or `fields`, or a `template`.

    `ascii` escapes non-ASCII characters of `full_record` as `json.dumps` does by default.
    """

    name: str
    fields: tuple[str, ...] | None = None
    template: str | None = None
    ascii: bool = False

    @model_validator(mode="after")
    def _one_definition(self) -> Self:
        if not NAME_PATTERN.match(self.name):
            raise ValueError(f"name is '{self.name}'; use lower-case letters, digits and _, a letter first")
        if self.fields is not None and self.template is not None:
            raise ValueError(f"strategy '{self.name}' has both fields and template; keep one of them")
        if self.name in BUILT_IN_STRATEGIES:
            if self.fields is not None or self.template is not None:
                raise ValueError(f"'{self.name}' is built in and takes no fields or template; choose another name")
        elif self.fields is None and self.template is None:
            raise ValueError(
                f"the strategy '{self.name}' is unknown{did_you_mean(self.name, BUILT_IN_STRATEGIES)}; "
                f'use {", ".join(BUILT_IN_STRATEGIES)}, or give it fields: [...] or template: "..."'
            )
        if self.ascii and self.name != "full_record":
            raise ValueError(f"ascii belongs to full_record only; remove it from strategy '{self.name}'")
        if self.fields is not None and not self.fields:
            raise ValueError(f"fields of strategy '{self.name}' is empty; name at least one field")
        if self.template is not None and not self.template_fields():
            raise ValueError(
                f"template of strategy '{self.name}' is {self.template!r}, which names no field; write one as {{title}}"
            )
        return self

    def template_fields(self) -> tuple[str, ...]:
        """Return the fields that the template names, in order and without repeats."""
        try:
            parsed = list(string.Formatter().parse(self.template or ""))
        except ValueError as error:
            raise ValueError(
                f"template of strategy '{self.name}' is {self.template!r}, which cannot be parsed ({error}); "
                "write fields as {title} and braces as {{ and }}"
            ) from error
        for _, name, spec, conversion in parsed:
            if name is not None and (not name or spec or conversion or "[" in name):
                raise ValueError(
                    f"template of strategy '{self.name}' has the placeholder '{{{name}}}' with a format, index or no "
                    "name; write field names as {title} or {metadata.title}"
                )
        return tuple(dict.fromkeys(name for _, name, _, _ in parsed if name))

    def needed_fields(self) -> tuple[str, ...] | None:
        """Return the record fields that this strategy reads, or None for all of them."""
        if self.fields is not None:
            return tuple(dict.fromkeys(self.fields))
        return self.template_fields() if self.template is not None else None
