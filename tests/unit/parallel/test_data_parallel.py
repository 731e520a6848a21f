"""The count of backward passes, after which gradients are summed over ranks."""

from __future__ import annotations

import pytest

from hpccoll.errors import UsageError

torch = pytest.importorskip("torch")

from hpccoll.parallel.data_parallel import note_backward_pass  # noqa: E402 - torch may not be here


def test_passes_are_counted_until_none_is_missing_and_gradients_move_to_their_view():
    parameter, view = torch.ones(3, requires_grad=True), torch.zeros(3)
    missing = {parameter: 2}
    for _ in range(2):
        (2 * parameter).sum().backward()
        note_backward_pass(parameter, missing, view)
        assert parameter.grad is view
    assert not missing
    assert view.tolist() == [4, 4, 4]
    with pytest.raises(UsageError, match="more backward passes"):
        note_backward_pass(parameter, missing, view)
