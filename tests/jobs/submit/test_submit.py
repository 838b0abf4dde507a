"""One job is started, whatever the head answers; a job that is there is not started again."""

from __future__ import annotations

import pytest
from fake_clock import FakeClock
from fake_head import fake_head

from jobs.submit.head import Head, HeadLostError
from jobs.submit.submit import submit


def test_a_head_that_is_not_ready_is_asked_again(request_for):
    request = request_for()
    with fake_head(posts=["busy", "busy", "accept"]) as head:
        sent = submit(request, Head(head.url), clock=FakeClock())
        assert not sent.attached
        (job,) = head.sent
    assert job["submission_id"] == sent.job_id == f"tango-{request.digest[:10]}-1"
    assert job["entrypoint"] == request.entrypoint
    assert job["metadata"] == request.metadata


@pytest.mark.parametrize("new", [False, True])
def test_a_job_whose_answer_was_lost_is_not_sent_twice(request_for, new):
    with fake_head(posts=["lose", "accept"]) as head:
        sent = submit(request_for(new=new), Head(head.url), clock=FakeClock())
        assert [job["submission_id"] for job in head.sent] == [sent.job_id]


def test_the_same_job_is_found_and_new_starts_another(request_for):
    with fake_head() as head:
        client = Head(head.url)
        first = submit(request_for(), client)
        again = submit(request_for(user="somebody else"), client)
        assert (again.job_id, again.attached) == (first.job_id, True)
        other = submit(request_for(new=True), client)
        assert (other.job_id, other.attached) == (first.job_id[:-1] + "2", False)
        elsewhere = submit(request_for(directory="/data"), client)
        assert not elsewhere.attached
        assert len(head.sent) == 3


def test_a_head_that_never_is_ready_is_one_line(request_for):
    clock = FakeClock()
    with fake_head(posts=["busy"]) as head, pytest.raises(HeadLostError) as error:
        submit(request_for(), Head(head.url), clock=clock)
    assert clock.passed_s >= 60
    assert "\n" not in str(error.value)
