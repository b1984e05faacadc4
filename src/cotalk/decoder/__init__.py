"""A hand-written decoder of the Llama family (Llama, SmolLM2, Mistral, Qwen2, Qwen3) for many adapters at once.

    weights.py    the transformers model's weights, fused, shared with it, with room for the adapters
    ops.py        what is computed, each step once: Triton kernels on a GPU, plain-torch twins everywhere
    kernels.py    the Triton kernels
    attention.py  attention of packed sequences of different lengths
    packing.py    training rows -> one packed batch in which shared prefixes stand once
    training.py   log-probabilities and LoRA gradients of a packed batch, by hand
    serving.py    the forward pass of a batch whose rows name their adapters, over a paged KV cache

`engines/fast.py` decodes with it, the learner trains with it; `hf` and padded training are the oracles.
"""
