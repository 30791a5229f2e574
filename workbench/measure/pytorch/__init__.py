"""What a kernel competes with: `ways` defines PyTorch's ways of computing a direction, `baselines` measures them."""
