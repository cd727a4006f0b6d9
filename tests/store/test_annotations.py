"""Annotations: of a job or of a project, stored once by key, paged, matched and retained."""

import time

import pytest

from app.alerts.labels import Matcher
from app.errors import AnnotationNotFound, JobNotFound, ShareLinkNotFound
from app.store import annotations, hosts, retention
from app.store.annotations import AnnotationFilter
from app.store.credentials import share_links
from app.store.retention import RetentionLimits
from tests.store.factories import annotation, register, share_link

DAY_S = 86_400.0


def add(store, **changes):
    with store.write() as conn:
        return annotations.add(conn, annotation(**changes))


def texts(store, job_id="default/a"):
    with store.read() as conn:
        return [each.text for each in annotations.of_job(conn, job_id)]


def test_annotation_is_read_back_with_the_epoch_of_its_step(store):
    register(store, "default/a")
    kept, is_new = add(store, matchers=(Matcher("host", "h*", is_negative=True),), ends_s=200.5)
    assert (kept.epoch, is_new) == (1, True)
    with store.read() as conn:
        assert annotations.get(conn, "default", kept.annotation_id) == kept
        with pytest.raises(AnnotationNotFound):
            annotations.get(conn, "other", kept.annotation_id)
    with pytest.raises(JobNotFound):
        add(store, job_id="default/missing")


def test_same_key_gives_the_same_id_for_one_job_only():
    one = annotations.new_id("default", "default/a", "deploy-1")
    assert one == annotations.new_id("default", "default/a", "deploy-1")
    others = [
        annotations.new_id("default", "default/b", "deploy-1"),
        annotations.new_id("default", None, "deploy-1"),
        annotations.new_id("other", "default/a", "deploy-1"),
        annotations.new_id("default", "default/a", None),
        annotations.new_id("default", "default/a", None),
    ]
    assert len({one, *others}) == 6


def test_stored_annotation_is_not_changed_by_a_second_attempt(store):
    register(store, "default/a")
    add(store, text="first")
    kept, is_new = add(store, text="second")
    assert (kept.text, is_new) == ("first", False)


def test_annotation_of_a_project_is_matched_by_label_and_by_any_host(store):
    register(store, "default/a", labels={"team": "vision"})
    register(store, "default/b")
    with store.write() as conn:
        hosts.add_to_run(conn, "default/a", 1, ["h1", "h2"])
    project = {"job_id": None, "step": None}
    cases = {
        "team": (Matcher("team", "vis*"),),
        "host": (Matcher("host", "h2"),),
        "not host": (Matcher("host", "h2", is_negative=True),),
        "both": (Matcher("job", "a"), Matcher("host", "h9")),
        "all": (),
    }
    for number, (text, matchers) in enumerate(cases.items()):
        add(store, annotation_id=f"{number:02x}", text=text, matchers=matchers, **project)
    assert sorted(texts(store)) == ["all", "host", "team"]
    assert sorted(texts(store, "default/b")) == ["all", "not host"]


def test_an_event_counts_for_all_of_the_time_that_it_lasts(store):
    register(store, "default/a")
    times = {
        "before": (10.0, 19.0),
        "lasts": (10.0, 25.0),
        "inside": (22.0, None),
        "at": (30.0, 40.0),
    }
    for number, (text, (at_s, ends_s)) in enumerate(times.items()):
        add(store, annotation_id=f"{number:02x}", text=text, at_s=at_s, ends_s=ends_s)
    with store.read() as conn:
        found = annotations.of_job(conn, "default/a", AnnotationFilter(20.0, 30.0))
    assert sorted(event.text for event in found) == ["inside", "lasts"]


def test_annotations_at_the_same_time_are_paged_without_a_loss(store):
    register(store, "default/a")
    for number in range(5):
        add(store, annotation_id=f"{number:02x}", text=str(number), at_s=float(number // 2))
    found, cursor = [], None
    with store.read() as conn:
        while True:
            page, cursor = annotations.page_of_job(
                conn, "default/a", AnnotationFilter(), cursor=cursor, limit=2
            )
            found += [each.text for each in page]
            if cursor is None:
                break
        everything, _ = annotations.page(conn, "default", AnnotationFilter())
    assert found == ["4", "3", "2", "1", "0"] == [each.text for each in everything]


def test_old_annotations_and_ended_share_links_expire_with_results(store):
    now_s = time.time()
    register(store, "default/a")
    for number, days in enumerate((1, 9)):
        created_s = now_s - days * DAY_S
        add(store, annotation_id=f"{number:02x}", text=str(days), created_s=created_s)
    with store.write() as conn:
        for days in (9, 7):
            made = share_link(expires_s=now_s - (days - 1) * DAY_S)
            share_links.create(conn, made, now_s=now_s - days * DAY_S)
    removed = {each.kind: each.number for each in retention.sweep(store, RetentionLimits(7.5, 7.5))}
    assert (removed["annotations"], removed["share links"]) == (1, 1)
    assert texts(store) == ["1"]


def test_share_link_opens_by_its_token_until_it_expires_or_is_revoked(store):
    register(store, "default/a")
    with store.write() as conn:
        made, token = share_links.create(conn, share_link(expires_s=20.0), now_s=10.0)
        found = share_links.find_page(conn, token, now_s=19.9)
        with pytest.raises(ShareLinkNotFound):
            share_links.find_page(conn, token, now_s=20.0)
        assert found == (made, b"<p>")
        assert share_links.revoke(conn, "default", made.share_id, now_s=11.0)
        assert not share_links.revoke(conn, "default", made.share_id, now_s=12.0)
        with pytest.raises(ShareLinkNotFound):
            share_links.find_page(conn, token, now_s=12.0)
        with pytest.raises(ShareLinkNotFound):
            share_links.get(conn, "other", made.share_id)
