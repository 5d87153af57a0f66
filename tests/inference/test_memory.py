"""One very long text among short ones stays flat in memory, the vocabulary head included."""

import json
import subprocess
import sys
from pathlib import Path

from tests.inference.tiny import tokenizer

PROGRAM = """
import json, resource, sys
from pathlib import Path
from embeddings_pipeline.inference.encoder import load_encoder
from embeddings_pipeline.models.store import resolve
from embeddings_pipeline.settings import ModelSpec

encoder = load_encoder(resolve(ModelSpec(name="long", source=sys.argv[1])), "cpu")
loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
texts = ["w1 w2 w3 " * (1 + number % 60) for number in range(40)] + ["w4 w5 " * 5_000]
batch = encoder.embed(texts)
encoder.close()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
told = {"path": encoder.path, "tokens": encoder.max_length, "failures": len(batch.failures), "rows": len(batch)}
print(json.dumps(told | {"loaded": loaded / 1024, "peak": peak / 1024}))
"""


def test_a_text_of_8192_tokens_stays_under_a_gigabyte_and_a_half(tmp_path: Path) -> None:
    """Case 40: its logits alone, [8192, 30522] float32, would be a gigabyte, and the library holds several of them."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 30_522, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(**sizes, intermediate_size=512, max_position_embeddings=8_192, pad_token_id=1)
    BertForMaskedLM(config).save_pretrained(tmp_path)
    fast = tokenizer(types=True)
    fast.model_max_length = 8_192
    fast.save_pretrained(tmp_path)
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert (told["path"], told["tokens"], told["failures"], told["rows"]) == ("packed", 8_192, 0, 41)
    assert told["peak"] < 1_500, told
    # Of that, importing the libraries and loading take most; the texts themselves add little.
    assert told["peak"] - told["loaded"] < 600, told
