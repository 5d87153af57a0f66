"""Linear layers by oneDNN: the same numbers, on the processors that profit, and undone where they are not."""

from collections.abc import Iterator

import pytest
import torch
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertIntermediate

from embeddings_pipeline.inference import linear


@pytest.fixture
def on_amd(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(linear, "_maker", lambda: "AuthenticAMD")
    monkeypatch.setattr(linear, "_instructions", lambda: "AVX512")
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
def test_a_gelu_that_follows_is_applied_once_whichever_way_the_layer_is_computed() -> None:
    config = BertConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=1, num_attention_heads=4)
    torch.manual_seed(0)
    block = BertIntermediate(config)
    other = BertIntermediate(BertConfig(**config.to_dict() | {"hidden_act": "relu"}))
    model = torch.nn.ModuleList([block, other])
    model.device = torch.device("cpu")
    many, few = torch.randn(1, 704, 256), torch.randn(1, 3, 256)
    with torch.inference_mode():
        before = [layer(rows) for layer in (block, other) for rows in (many, few)]
        undo = linear.switch_layers(model)
        assert undo is not None
        after = [layer(rows) for layer in (block, other) for rows in (many, few)]
        for one, two in zip(before, after, strict=True):
            assert torch.allclose(one, two, atol=1e-5)
        assert type(block.intermediate_act_fn) is torch.nn.Identity
        assert type(other.intermediate_act_fn) is not torch.nn.Identity
        undo()
        assert torch.equal(block(many), before[0])


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


@pytest.mark.parametrize(
    ("vendor", "instructions"), [("GenuineIntel", "AVX512"), ("", "DEFAULT"), ("AuthenticAMD", "AVX2")]
)
def test_other_processors_keep_torchs_own_product(
    monkeypatch: pytest.MonkeyPatch, vendor: str, instructions: str
) -> None:
    monkeypatch.setattr(linear, "_maker", lambda: vendor)
    monkeypatch.setattr(linear, "_instructions", lambda: instructions)
    linear.onednn_product.cache_clear()
    try:
        assert linear.onednn_product() is None
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        model.device = torch.device("cpu")
        assert linear.switch_layers(model) is None
    finally:
        linear.onednn_product.cache_clear()
