"""What a kernel competes with. core/pytorch_ways.py names PyTorch's ways of computing a direction; `baselines` measures them.

`ways` computes nn.ConvTranspose in its modes, `formulations` the same layer by other operators of PyTorch (`aten`, `shuffled`).
"""
