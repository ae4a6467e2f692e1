"""Writes tests/fixtures/rerank.json: scores of documents by transformers, computed as the model cards of Qwen3-Reranker and
Qwen3-Embedding say, with the built-in model in their place.

    shohin convert models/sprout.gguf --safetensors --type f32 --out sprout
    python tests/oracle/rerank.py sprout
"""
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

QUERY = "What does a cow say?"
DOCUMENTS = ["The fox ran home.", "A cow says moo.", "A bird sang in the tree, and the sun was warm."]
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def ids(text):
    return tokenizer.encode(text, add_special_tokens=False)


def judged(document):
    text = f"<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>: {document}"
    tokens = ids(BEFORE) + ids(text) + ids(AFTER)
    logits = model(torch.tensor([tokens])).logits[0, -1].double()
    (yes,), (no,) = ids("yes"), ids("no")
    return torch.softmax(torch.stack([logits[no], logits[yes]]), 0)[1].item(), len(tokens)


def embedded(text):
    states = model.model(torch.tensor([ids(text)])).last_hidden_state[0].double()
    return torch.nn.functional.normalize(states.mean(0), dim=0)


with torch.no_grad():
    judged = [judged(document) for document in DOCUMENTS]
    cosines = [(embedded(QUERY) @ embedded(document)).item() for document in DOCUMENTS]
fixture = {
    "query": QUERY,
    "documents": DOCUMENTS,
    "reranked": [score for score, _ in judged],
    "tokens": sum(tokens for _, tokens in judged),
    "cosines": cosines,
}
target = Path(__file__).parent.parent / "fixtures" / "rerank.json"
target.write_text(json.dumps(fixture, indent=1) + "\n")
print(fixture)
