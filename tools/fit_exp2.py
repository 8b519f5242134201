#!/usr/bin/env python3
"""Minimax polynomials of 2^f on [0, 1] in relative error, as src/kernels/cpu/simd.h uses them.

    tools/fit_exp2.py        prints degree, error and coefficients from the highest power down

Solves the linear program min t with |p(f) / 2^f - 1| <= t on a grid. Needs numpy and scipy.
"""

import numpy as np
from scipy.optimize import linprog


def fit(degree, exact_at_zero):
    """(coefficients from power 0 up, largest relative error)."""
    f = np.linspace(0.0, 1.0, 4001)
    columns = np.stack([f**k / 2.0**f for k in range(degree + 1)], axis=1)
    target = np.ones_like(f)
    if exact_at_zero:
        target, columns = target - columns[:, 0], columns[:, 1:]
    slack = -np.ones((len(f), 1))
    unknowns = columns.shape[1]
    result = linprog(
        c=[0.0] * unknowns + [1.0],
        A_ub=np.block([[columns, slack], [-columns, slack]]),
        b_ub=np.concatenate([target, -target]),
        bounds=[(None, None)] * unknowns + [(0, None)],
        method="highs",
    )
    return ([1.0] if exact_at_zero else []) + list(result.x[:-1]), result.x[-1]


def main():
    for degree, exact_at_zero in ((2, False), (3, False), (5, True)):
        coefficients, error = fit(degree, exact_at_zero)
        print(degree, f"{error:.2e}", " ".join(f"{c:.9e}" for c in reversed(coefficients)))


if __name__ == "__main__":
    main()
