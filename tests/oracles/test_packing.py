"""Prompts on sheets: each there once, whole, in one row, beside others that it cannot see."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedzero.oracles.packing import STEP, WIDTH, mask_of, pack_prompts

PROMPTS = st.lists(st.lists(st.integers(1, 999), min_size=1, max_size=90), min_size=1, max_size=40)


@given(PROMPTS, st.sampled_from([0, 64, 4096]), st.sampled_from([1, 300, 100_000]))
def test_every_prompt_is_found_where_its_end_says(prompts, upto, tokens):
    seen = []
    for sheet in pack_prompts(prompts, upto, tokens):
        assert sheet.tokens.shape[0] == 3
        height, width = sheet.tokens.shape[1:]
        assert height == 1 or height * width <= tokens
        assert not sheet.shared or (width <= upto and width % STEP == 0)
        for number, (row, column) in zip(sheet.which, sheet.ends.T.tolist(), strict=True):
            prompt = prompts[number]
            here = slice(column + 1 - len(prompt), column + 1)
            ids, owners, positions = sheet.tokens[:, row]
            assert ids[here].tolist() == prompt
            assert positions[here].tolist() == list(range(len(prompt)))
            assert owners[here].eq(int(number)).all()
            assert int((owners == int(number)).sum()) == len(prompt)
            seen.append(number)
    assert sorted(seen) == list(range(len(prompts)))


def test_short_prompts_fill_few_rows():
    (sheet,) = pack_prompts([[1] * 10 for _ in range(64)], 8192, 1 << 20)
    assert sheet.tokens.shape == (3, 6, WIDTH)  # twelve to a row


def test_prompts_longer_than_a_shared_row_may_be_get_rows_of_their_own():
    found = list(pack_prompts([[1] * 70, [2] * 3], 64, 1 << 20))
    assert [sheet.shared for sheet in found] == [False]
    assert found[0].tokens.shape == (3, 2, 70)


def test_a_token_sees_its_own_prompt_up_to_itself():
    (sheet,) = pack_prompts([[1, 1, 1], [2, 2]], 64, 1 << 20)
    seen = mask_of(sheet.tokens, torch.float32)[0, 0] == 0
    owners = sheet.tokens[1, 0]
    wanted = np.array([[bool(owners[i] == owners[j]) and j <= i for j in range(STEP)] for i in range(STEP)])
    assert np.array_equal(seen.numpy(), wanted)
