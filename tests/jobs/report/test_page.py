"""The page of a run: whole, safe, and what the summary holds."""

from fake_answers import cell, facts_of, fake_answers, write_run
from report_page import TANGO, Page
from summaries import summarize

from jobs.report.compare import write_report
from jobs.report.page import Contents, render_html


def page_of(facts, answers):
    summary = summarize(answers, facts)
    return Page(render_html(Contents(summary, facts, {"job.yaml": "a: 1"})))


class TestPage:
    def test_needs_no_network_and_runs_no_script(self, sweep):
        page = page_of(*sweep[1:])
        assert "script" not in page.tags
        assert page.links == []
        assert page.tags.count("svg") > 2

    def test_shows_the_numbers_of_the_summary(self, sweep):
        summary, facts, answers = sweep
        words = page_of(facts, answers).words
        assert facts.note in words
        for entry in summary.cells:
            low, high = entry.accuracy.low, entry.accuracy.high
            assert f"{100 * low:.1f} to {100 * high:.1f}" in words
            for group in entry.headline_by["duration"].values():
                assert f"{100 * group.value:.1f}" in words
        assert "clip 2.mp4: 0 of 32 frames decoded" in words

    def test_escapes_everything_that_comes_from_data(self):
        evil = "<script>alert('x')</script>&\"<b>"
        odd = cell("tango", 0.1, benchmark=evil, note=evil)
        object.__setattr__(odd, "name", evil)
        facts = facts_of(odd, note=evil, versions={evil: evil}, run_id=evil, device=evil)
        answers = fake_answers(facts, num_clips=4, failed_clips=(1,))
        answers["error"], answers["video_id"] = evil + answers["error"], evil + answers["video_id"]
        answers["groups"] = '{"<b>": "<i onload=x>"}'
        summary = summarize(answers, facts)
        html = render_html(Contents(summary, facts, {evil: evil}))
        page = Page(html)
        assert "<script" not in html
        assert not {"script", "b_"} & set(page.tags)
        assert page.tags.count("b") == 1
        assert page.words.count("<script>") > 5

    def test_a_run_whose_clips_all_failed_has_a_page_with_the_reasons(self, tmp_path):
        facts = facts_of(cell("full"), TANGO)
        answers = fake_answers(facts, num_clips=3, failed_clips=range(3), unparsed=0)
        run = write_run(tmp_path / "run", answers, facts)
        write_report(run)
        words = Page((run / "report.html").read_text()).words
        assert "Nothing was measured." in words
        assert words.count("the file is probably truncated") == 3
        assert "0.0" in words
