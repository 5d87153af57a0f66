"""How much arithmetic a BERT needs, from its config alone.

What belongs here: counting. What does not: measuring how fast a machine is (`ways.MatrixProducts`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Product:
    """A linear layer, [tokens, inputs] times [inputs, outputs], which a model has `times` times."""

    inputs: int
    outputs: int
    times: int

    @property
    def flops_per_token(self) -> int:
        """A multiplication and an addition for each weight."""
        return 2 * self.inputs * self.outputs * self.times


def linear_products(config: Mapping[str, Any], *, head: bool) -> list[Product]:
    """Return the linear layers that every token goes through.

    Args:
        config: the model's config.json; BERT and models shaped like it.
        head: whether the vocabulary head of a masked language model is one of them.
    """
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    inner = config["intermediate_size"]
    products = [
        Product(width, width, 4 * layers),
        Product(width, inner, layers),
        Product(inner, width, layers),
    ]
    if head:
        products += [Product(width, width, 1), Product(width, config["vocab_size"], 1)]
    return products


def flops_of(config: Mapping[str, Any], lengths: Sequence[int], *, head: bool) -> int:
    """Return the operations for texts with these many tokens, without padding.

    Attention is counted too: query times key and weights times value, each over the whole text.
    """
    per_token = sum(product.flops_per_token for product in linear_products(config, head=head))
    per_pair = 4 * config["hidden_size"] * config["num_hidden_layers"]
    return sum(per_token * length + per_pair * length * length for length in lengths)
