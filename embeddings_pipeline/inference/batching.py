"""How texts are cut into model batches.

What belongs here: the plan, a pure function of token counts and two numbers, so that a resumed part
is the same part. What does not: tokenising (`tokens`), running the batches (`workers`, `engine`).
"""

from collections.abc import Sequence


def plan(lengths: Sequence[int], most_texts: int, most_tokens: int, *, padded: bool) -> list[list[int]]:
    """Cut texts into model batches: longest first, equal lengths side by side.

    Every text stands in exactly one batch. A batch has at most `most_texts` texts and costs at most
    `most_tokens` tokens, except that a text longer than that stands alone. The longest come first so
    that the batches that could not fit into memory are met at once, and no long one is left for
    last while other workers idle.

    Args:
        lengths: tokens per text.
        most_texts: `model_batch_size`.
        most_tokens: `model_batch_tokens`.
        padded: whether a text costs as much as the longest of its batch.

    Returns:
        The positions in `lengths`, batch by batch; equal lengths keep their order.
    """
    batches: list[list[int]] = []
    tokens = 0
    for position in sorted(range(len(lengths)), key=lambda position: -lengths[position]):
        length = lengths[position]
        if batches and len(batches[-1]) < most_texts:
            widened = (len(batches[-1]) + 1) * lengths[batches[-1][0]] if padded else tokens + length
            if widened <= most_tokens:
                batches[-1].append(position)
                tokens = widened
                continue
        batches.append([position])
        tokens = length
    return batches


def cost(lengths: Sequence[int], *, padded: bool) -> int:
    """Return the tokens that a batch of these texts computes, padding included."""
    return len(lengths) * max(lengths, default=0) if padded else sum(lengths)
