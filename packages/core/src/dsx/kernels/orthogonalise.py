"""The nearest matrix with equal singular values, by Newton-Schulz iteration: what Muon does to a momentum."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic that Muon iterates: steep at 0, so that five steps bring singular values near 1 (0.7 to 1.2)."""
_FRESH = 3
"""Steps after which the Gram matrix is formed anew: errors in its small eigenvalues grow twelvefold a step."""


def orthogonalise(matrix: Tensor, *, steps: int = 5, method: Literal["gram", "standard"] = "standard") -> Tensor:
    """``U V^T`` of ``matrix = U S V^T``, roughly. Shape [..., rows, columns]; leading dims are separate matrices.

    ``standard`` iterates on the matrix; ``gram`` iterates on its smaller Gram matrix, with the same result and less
    work where the matrix is far from square. Runs in the dtype of ``matrix`` (the Gram iteration in fp32 at least).
    """
    a = matrix / matrix.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    wide = a.size(-2) <= a.size(-1)
    a = a if wide else a.mT
    far_from_square = a.size(-1) >= 1.5 * a.size(-2)
    a = _gram(a, steps) if method == "gram" and far_from_square else _standard(a, steps)
    return a if wide else a.mT


def _standard(x: Tensor, steps: int) -> Tensor:
    first, second, third = COEFFICIENTS
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = second * gram + third * (gram @ gram)
        x = first * x + polynomial @ x
    return x


def _gram(x: Tensor, steps: int) -> Tensor:
    """x_k+1 = P(G_k) x_k, so G_k+1 = P(G_k)^2 G_k: all but the first and last product are of the small side."""
    first, second, third = COEFFICIENTS
    wide = torch.promote_types(x.dtype, torch.float32)
    eye = torch.eye(x.size(-2), dtype=wide, device=x.device)
    for start in range(0, steps, _FRESH):
        gram = (x @ x.mT).to(wide)
        product = eye
        count = min(_FRESH, steps - start)
        for k in range(count):
            polynomial = first * eye + second * gram + third * (gram @ gram)
            product = polynomial @ product
            if k + 1 < count:
                gram = polynomial @ polynomial @ gram
                gram = (gram + gram.mT) / 2
        x = product.to(x.dtype) @ x
    return x
