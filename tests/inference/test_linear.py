"""Linear layers by oneDNN: the same numbers, on the processors that profit, and undone where they are not."""

from collections.abc import Iterator

import pytest
import torch

from embeddings_pipeline.inference import linear


@pytest.fixture
def on_amd(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(linear, "_maker", lambda: "AuthenticAMD")
    linear.onednn_product.cache_clear()
    yield
    linear.onednn_product.cache_clear()


@pytest.mark.usefixtures("on_amd")
@pytest.mark.parametrize("bias", [True, False])
def test_switched_layers_give_the_same_numbers(bias: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512, bias=bias), torch.nn.GELU(), torch.nn.Linear(512, 64))
    model.device = torch.device("cpu")
    rows = torch.randn(1, 704, 256)
    with torch.inference_mode():
        before = model(rows)
        undo = linear.switch_layers(model)
        assert undo is not None
        assert linear.product_for(rows, model[0].weight) is not None
        assert torch.allclose(model(rows), before, atol=1e-5)
        undo()
        assert type(model[0]) is torch.nn.Linear
        assert torch.equal(model(rows), before)


@pytest.mark.usefixtures("on_amd")
@pytest.mark.parametrize(
    "rows",
    [
        torch.zeros(4, 256),
        torch.zeros(703, 256),
        torch.zeros(704, 256, dtype=torch.bfloat16),
        torch.zeros(704, 256, device="meta"),
    ],
    ids=["few rows", "one row too few", "another dtype", "another device"],
)
def test_what_does_not_profit_is_left_to_torch(rows: torch.Tensor) -> None:
    weight = torch.zeros(512, 256, dtype=rows.dtype, device=rows.device)
    assert linear.product_for(rows, weight) is None


@pytest.mark.parametrize("vendor", ["GenuineIntel", ""])
def test_other_processors_keep_torchs_own_product(monkeypatch: pytest.MonkeyPatch, vendor: str) -> None:
    monkeypatch.setattr(linear, "_maker", lambda: vendor)
    linear.onednn_product.cache_clear()
    try:
        assert linear.onednn_product() is None
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        model.device = torch.device("cpu")
        assert linear.switch_layers(model) is None
    finally:
        linear.onednn_product.cache_clear()
