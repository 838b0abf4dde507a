"""One job is started, whatever the head answers; a job that is there is not started again."""

from __future__ import annotations

import pytest
from fake_clock import FakeClock
from fake_head import fake_head

from jobs.submit.head import Head, HeadLostError


def test_a_head_that_is_not_ready_is_asked_again(request_for):
    request = request_for()
    with fake_head(posts=["busy", "busy", "accept"]) as head:
        job_id, is_new = Head(head.url).submit(request, {}, clock=FakeClock())
        assert is_new
        (job,) = head.sent
    assert job["submission_id"] == job_id == f"tango-{request.digest[:10]}-1"
    assert job["entrypoint"] == request.entrypoint
    assert job["metadata"] == request.metadata


@pytest.mark.parametrize("new", [False, True])
def test_a_job_whose_answer_was_lost_is_not_sent_twice(request_for, new):
    with fake_head(posts=["lose", "accept"]) as head:
        sent = Head(head.url).submit(request_for(new=new), {}, clock=FakeClock())
        assert [job["submission_id"] for job in head.sent] == [sent[0]]


def test_the_same_job_is_found_and_new_starts_another(request_for):
    with fake_head() as head:
        client = Head(head.url)
        first, _ = client.submit(request_for(), {})
        assert client.submit(request_for(user="somebody else"), {}) == (first, False)
        assert client.submit(request_for(new=True), {}) == (first[:-1] + "2", True)
        assert client.submit(request_for(directory="/data"), {})[1]
        assert len(head.sent) == 3


def test_a_head_that_never_is_ready_is_one_line(request_for):
    clock = FakeClock()
    with fake_head(posts=["busy"]) as head, pytest.raises(HeadLostError) as error:
        Head(head.url).submit(request_for(), {}, clock=clock)
    assert clock.passed_s >= 60
    assert "\n" not in str(error.value)
