from mrl.alignment import Residual, measure


def test_the_residual_by_hand():
    got = measure([b"ab", b"c", b"de"], [b"ab", b"c", b"d", b"e"])
    assert (got["bytes"], got["bytes_one_to_one"]) == (5, 3)
    assert (got["source_tokens"], got["receiver_tokens"]) == (3, 4)


def test_residuals_add_up_to_that_of_a_run():
    one = measure([b"ab"], [b"a", b"b"])
    two = measure([b"c"], [b"c"])
    both = Residual()
    for one_more in (one, two):
        both.update(one_more)
    assert (both["records"], both["bytes"], both["bytes_one_to_one"]) == (2, 3, 1)
