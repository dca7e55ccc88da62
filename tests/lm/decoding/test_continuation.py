from lm.decoding.batching import Continuation, Finish, Token


def test_a_sample_grows_by_its_events():
    sample = Continuation()
    sample.append(Token(3, 7, -0.5, "ow", ((7, -0.5), (8, -1.5))))
    assert sample == Continuation("ow", [7], [-0.5], [((7, -0.5), (8, -1.5))])
    assert sample.finish_reason is None
    sample.append(Token(3, 2, -0.25))
    sample.append(Finish(3, "end_of_text", "l"))
    assert sample == Continuation("owl", [7, 2], [-0.5, -0.25], [((7, -0.5), (8, -1.5)), ()], "end_of_text")
