"""The guards' page of the admin: who may see it and act on it, what it tells, and that looking changes nothing."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db import connections
from django.test import Client
from django.utils import timezone

from bloomguard import metrics as figures
from bloomguard.dashboard import operations as tasks
from bloomguard.guards import registry
from bloomguard.models import GuardState, GuardTask
from bloomguard.state import table as states
from bloomguard.state.verdicts import Verdict
from tests.shop.models import Article, Product
from tests.support.guarding import registered

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("fresh", "admin_urls")]

PAGE = "/admin/bloomguard/guardstate/"
OPERATE = f"{PAGE}operate/"


@pytest.fixture
def admin_urls(settings):
    settings.ROOT_URLCONF = "config.urls"


@pytest.fixture
def staff(db):
    """``staff("view_guardstate")`` is a client of a member of staff with these permissions alone."""

    def make(*permissions: str) -> Client:
        user = User.objects.create(username=f"user{User.objects.count()}", is_staff=True)
        kind = ContentType.objects.get_for_model(GuardState)
        user.user_permissions.set(
            Permission.objects.get_or_create(content_type=kind, codename=name)[0] for name in permissions
        )
        client = Client(enforce_csrf_checks=True)
        client.force_login(user)
        client.user = user
        return client

    return make


def post(client: Client, path: str, **data):
    """POST as a browser does that has opened the confirmation: with the token of its page."""
    page = client.get(path, data)
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.content.decode())
    return client.post(path, {**data, "csrfmiddlewaretoken": token[1] if token else ""})


def rows():
    """Everything that an operation may change."""
    return (
        list(GuardState.objects.order_by("name").values()),
        list(GuardTask.objects.order_by("name").values()),
        LogEntry.objects.count(),
    )


@pytest.mark.parametrize(
    "path", [PAGE, f"{PAGE}progress/", OPERATE, f"{PAGE}product/change/", f"{PAGE}product/history/"]
)
def test_nobody_sees_anything_without_the_permission(staff, path):
    """Strangers are sent to the login, staff without the permission are refused, and the index does not mention it."""
    stranger, plain = Client().get(path), staff()

    assert stranger.status_code == 302
    assert stranger["Location"].startswith("/admin/login/")
    assert plain.get(path).status_code == 403
    assert "guardstate" not in plain.get("/admin/").content.decode()


def test_to_look_is_not_to_act(staff, build):
    """Who may view alone is offered no operation, and none is done for him, by GET or POST."""
    build("product")
    client = staff("view_guardstate")
    before = rows()

    page = client.get(PAGE).content.decode()

    assert "product" in page
    assert "operate/" not in re.sub(r'<form method="get" action="[^"]*">', "", page)
    assert '<button class="button" name="action"' not in page
    assert client.get(OPERATE, {"action": "fence", "guard": "product"}).status_code == 403
    unchecked = Client()
    unchecked.force_login(client.user)
    assert unchecked.post(OPERATE, {"action": "fence", "guard": "product"}).status_code == 403
    assert rows() == before


@pytest.mark.parametrize("method", ["get", "head", "options", "put", "patch", "delete"])
def test_only_post_changes_anything(staff, build, method):
    """No other method does an operation, whatever its parameters say."""
    build("product")
    client = staff("operate_guardstate")
    before = rows()

    for operation in ("rebuild", "verify", "fence", "shadow", "enforce"):
        answer = getattr(client, method)(f"{OPERATE}?action={operation}&guard=product&csrfmiddlewaretoken=x")

        assert answer.status_code in (200, 403, 405)
        assert rows() == before


@pytest.mark.parametrize("path", [PAGE, f"{PAGE}progress/", f"{PAGE}product/change/"])
def test_pages_that_only_read_change_nothing(staff, build, path):
    """They answer GET, refuse POST, and leave every row as it was."""
    build("product")
    client = staff("operate_guardstate")
    before = rows()

    assert client.get(path).status_code in (200, 302)
    assert client.post(path).status_code in (403, 405)
    assert rows() == before


@pytest.mark.parametrize("path", [PAGE, f"{PAGE}progress/"])
def test_a_post_with_the_token_changes_nothing_there_either(staff, path):
    """Pages that only read know GET and HEAD alone."""
    client = Client()
    client.force_login(staff("operate_guardstate").user)

    assert client.post(path).status_code == client.put(path).status_code == 405
    assert client.delete(OPERATE).status_code == 405


def test_a_post_needs_the_token(staff, build):
    """Without the token of the confirmation page nothing is done."""
    build("product")
    client = staff("operate_guardstate")
    before = rows()

    assert client.post(OPERATE, {"action": "fence", "guard": "product"}).status_code == 403
    assert rows() == before


def test_fence_asks_first_then_fences_and_is_logged(staff, build):
    """The confirmation names the guard; after it the guard passes all requests, and the log says who did it."""
    build("product")
    client = staff("operate_guardstate")

    asked = client.get(OPERATE, {"action": "fence", "guard": "product"}).content.decode()
    answer = post(client, OPERATE, action="fence", guard="product")

    assert "<li>product</li>" in asked
    assert 'class="bg-confirm bg-mark-danger"' in asked
    assert answer.status_code == 302
    assert answer["Location"] == PAGE
    row = GuardState.objects.get(name="product")
    assert row.status == "fenced"
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id, entry.content_type.model) == (client.user, "product", "guardstate")
    assert "Fenced" in entry.change_message
    page = client.get(PAGE).content.decode()
    assert f"Fenced by {client.user.username} in the admin: requests pass until a rebuild." in page
    history = client.get(f"{PAGE}product/history/").content.decode()
    assert "Fenced: requests pass until a user rebuilds the filter." in history


def test_the_log_leads_to_the_guard_it_is_about(staff):
    """Also with a character in the name that the admin quotes in its URLs."""
    client = staff("view_guardstate")
    with registered(Product, name="my_guard"):
        tasks.log(str(client.user.pk), "my_guard", "done")
        page = client.get(LogEntry.objects.get().get_admin_url(), follow=True)

    assert page.status_code == 200
    assert page.context["overview"].chosen.name == "my_guard"


def test_fence_stands_apart_from_what_is_harmless(staff):
    """It comes last and is marked as dangerous, on the page and on its confirmation; Enforce in its own way."""
    client = staff("operate_guardstate")

    page = client.get(PAGE).content.decode()

    marks = re.findall(r'bg-mark-(\w*)" name="action" value="(\w+)"', page)
    assert marks == [("", "rebuild"), ("", "verify"), ("", "shadow"), ("change", "enforce"), ("danger", "fence")]
    assert "bg-mark-danger" not in client.get(OPERATE, {"action": "enforce", "guard": "product"}).content.decode()


def test_a_guard_that_a_rebuild_cures_shows_the_command(staff, build):
    """Fenced or without a filter, it tells what to run; not while a worker or another process rebuilds it."""
    build("product")
    build("article")
    GuardState.objects.filter(name="article").update(status="fenced")
    states.table.forget()
    client = staff("view_guardstate")

    def commands():
        return re.findall(
            r'<code class="bg-cure">python manage.py rebuild_filter ([\w-]+)<', client.get(PAGE).content.decode()
        )

    told = commands()
    GuardTask.objects.create(name="article", work="rebuild", status="running", seen_at=timezone.now())
    GuardState.objects.create(name="order", building="x", builder="host:1", builder_seen_at=timezone.now())
    meanwhile = commands()
    GuardState.objects.filter(name="order").update(builder_seen_at=timezone.now() - timedelta(hours=1))

    assert {"article", "order"} <= set(told)
    assert "product" not in told
    assert set(told) - set(meanwhile) == {"article", "order"}
    assert set(told) - set(commands()) == {"article"}


def test_the_breadcrumbs_are_the_admin_s_own(client, django_user_model):
    """The elements and classes that this Django uses on its own pages, so that its style sheet knows them."""
    client.force_login(django_user_model.objects.create_superuser("root"))

    def trail(path):
        found = re.search(r"<nav aria-label=.Breadcrumbs.>(.*?)</nav>", client.get(path).content.decode(), re.DOTALL)[1]
        steps = [step.strip() for step in re.split(r"<[^>]*>|&rsaquo;", found) if step.strip()]
        return [re.sub(' href="[^"]*"', "", mark) for mark in re.findall(r"<[^>]*>|&rsaquo;", found)], steps

    theirs, ours = trail("/admin/auth/user/"), trail(PAGE)

    assert ours[0] == theirs[0]
    assert ours[1] == ["Home", "Bloomguard", "Guards"]
    assert trail(f"{OPERATE}?action=fence&guard=product")[1] == ["Home", "Bloomguard", "Guards", "Fence"]
    assert trail(f"{PAGE}?guard=product")[1] == ["Home", "Bloomguard", "Guards", "product"]


def test_files_have_the_nonce_of_the_policy(staff, settings):
    """A site whose policy names a nonce, as Django 6 makes it, allows the page's own style sheet and script."""
    processors = [*settings.TEMPLATES[0]["OPTIONS"]["context_processors"], f"{__name__}.nonce"]
    settings.TEMPLATES = [
        {**settings.TEMPLATES[0], "OPTIONS": {**settings.TEMPLATES[0]["OPTIONS"], "context_processors": processors}}
    ]

    page = staff("operate_guardstate").get(PAGE).content.decode()

    assert len(re.findall(r'<(?:link|script)[^>]*/bloomguard/admin\.\w+"[^>]* nonce="once">', page)) == 2


def nonce(request):
    return {"csp_nonce": "once"}


def test_a_guard_without_a_filter_is_fenced_too(staff):
    """It stays without one until somebody rebuilds it."""
    client = staff("operate_guardstate")

    post(client, OPERATE, action="fence", guard="product")

    assert GuardState.objects.get(name="product").status == "fenced"
    assert "Fenced: requests pass until a user rebuilds the filter." in client.get(PAGE).content.decode()


def test_a_database_that_fails_is_said_and_not_raised(staff, build, monkeypatch):
    """An operation that the database refuses leaves a message with the kind of error, not its words."""
    from django.db import OperationalError

    build("product")
    client = staff("operate_guardstate")

    def fail(*args, **changes):
        raise OperationalError("the key 7 is broken")

    monkeypatch.setattr(states.table, "swap", fail)
    post(client, OPERATE, action="fence", guard="product")

    page = client.get(PAGE).content.decode()
    assert "nothing was done because the database failed (OperationalError)" in page
    assert "key 7" not in page
    assert LogEntry.objects.count() == 0


@pytest.mark.parametrize("operation", ["rebuild", "verify"])
def test_a_queue_that_fails_is_told_of(staff, monkeypatch, operation):
    """Each guard is queued by itself: one that cannot be leaves the others, and is no page of an error."""
    client, queued = staff("operate_guardstate"), []

    def enqueue(work, name, user):
        if name == "product":
            raise ConnectionError("redis://:hunter2@broker")
        queued.append(name)

    monkeypatch.setattr(tasks, "queue", lambda: enqueue)
    monkeypatch.setattr("bloomguard.admin.queue", lambda: enqueue)
    post(client, OPERATE, action=operation, guard=["product", "order"])

    page = client.get(PAGE).content.decode()
    assert "Guard product: it was not queued because the queue failed (ConnectionError)." in page
    assert "1 guard is queued for a worker." in page
    assert "hunter2" not in page
    assert queued == ["order"]


@pytest.mark.parametrize("operation", ["rebuild", "verify"])
def test_without_a_worker_the_page_gives_the_command(staff, monkeypatch, operation):
    """Where no worker would run a task, none is asked for: the page says what to type."""
    monkeypatch.setattr(tasks, "queue", lambda: None)
    monkeypatch.setattr("bloomguard.admin.queue", lambda: None)
    client = staff("operate_guardstate")

    page = client.get(OPERATE, {"action": operation, "guard": ["product", "order"]}).content.decode()
    again = post(client, OPERATE, action=operation, guard="product")

    assert f"python manage.py {operation}_filter product order" in page
    assert '<form method="post" class="bg-confirm"' not in page
    assert again.status_code in (200, 403)
    assert GuardTask.objects.count() == LogEntry.objects.count() == 0


@pytest.mark.parametrize(
    "query",
    ["action=drop&guard=product", "guard=product", "action=fence&guard=nobody", "action=fence&guard=product&guard=x"],
)
def test_what_does_not_exist_is_not_found(staff, query):
    """An unknown operation or guard is a 404, not an error."""
    assert staff("operate_guardstate").get(f"{OPERATE}?{query}").status_code == 404


def test_no_guard_selected(staff):
    """The confirmation of nothing says so, and offers no button."""
    client = staff("operate_guardstate")

    page = client.get(OPERATE, {"action": "fence"}).content.decode()

    assert "No guard is selected." in page
    assert "bg-confirm" not in page


@pytest.mark.parametrize("query", ["?period=century", "?period=month", "?period=hour&guard=product"])
def test_every_period_can_be_seen(staff, query):
    """Unknown periods are a day."""
    assert staff("view_guardstate").get(PAGE + query).status_code == 200


def test_an_unknown_guard_has_no_charts(staff):
    """A guard that does not exist is a 404."""
    assert staff("view_guardstate").get(f"{PAGE}?guard=nobody").status_code == 404


def test_the_page_tells_why(staff, build):
    """Each guard's line has its state and why, rows, fill, error rates, size, and when it was built."""
    Product.objects.bulk_create(Product() for _ in range(300))
    build("product")

    page = staff("view_guardstate").get(PAGE).content.decode()

    line = re.search(r'<tr[^>]*data-guard="product".*?</tr>', page, re.DOTALL)[0]
    for told in (
        "armed",
        "Absent IDs are answered 404.",
        "300",
        "30%",
        "of 1,000",
        "0.100% configured",
        "measured by the last rebuild",
        "bloom",
    ):
        assert told in line
    cold = re.search(r'<tr[^>]*data-guard="order".*?</tr>', page, re.DOTALL)[0]
    for told in ("cold", "It has no filter yet", "never", "–"):
        assert told in cold


def test_no_key_is_shown(staff, build):
    """Neither IDs, nor names of generations, nor what a store calls itself."""
    Product.objects.create(pk=424242)
    build("product")
    client = staff("operate_guardstate")

    pages = "".join(
        client.get(path).content.decode()
        for path in (PAGE, f"{PAGE}?guard=product&period=month", f"{OPERATE}?action=fence&guard=product")
    )

    row = GuardState.objects.get(name="product")
    for secret in ("424242", row.active, row.identity):
        assert secret
        assert secret not in pages


def test_nothing_inline_that_a_strict_policy_blocks(staff, build):
    """No script, style or handler stands in the page itself, and nothing comes from another host."""
    build("product")
    client = staff("operate_guardstate")
    for path in (PAGE, f"{OPERATE}?action=fence&guard=product"):
        page = client.get(path).content.decode()

        assert re.findall(r"<style|\sstyle=|\son[a-z]+=|javascript:", page) == []
        assert [tag for tag in re.findall(r"<script[^>]*>", page) if "src=" not in tag] == []
        assert re.findall(r'(?:src|href)="(?:https?:)?//', page) == []


def test_fifty_guards_take_fifteen_queries(staff, build, django_assert_max_num_queries, monkeypatch):
    """However many guards there are, the page asks the database at most fifteen times, the state rows included."""
    build("product")
    client = staff("operate_guardstate")
    asked = []
    execute = states.table.connection.execute
    monkeypatch.setattr(states.table.connection, "execute", lambda *args: asked.append(args) or execute(*args))
    states.table.forget()

    with fifty_guards(), django_assert_max_num_queries(15) as counted:
        page = client.get(f"{PAGE}?period=month").content.decode()

    assert len(re.findall(r"data-guard=", page)) >= 50
    assert len(counted) + len(asked) <= 15


class fifty_guards:
    """Fifty guards more, as long as the block lasts."""

    def __enter__(self):
        self._entered = [registered(Product, name=f"guard-{number:02}") for number in range(50)]
        for one in self._entered:
            one.__enter__()

    def __exit__(self, *args):
        for one in self._entered:
            one.__exit__(*args)


def test_progress_says_who_is_busy(staff):
    """The page's script learns which guards a worker is at, and how far."""
    now = timezone.now()
    GuardTask.objects.create(name="product", work="verify", status="running", done=5, total=10, seen_at=now)
    GuardTask.objects.create(name="order", work="rebuild", status="done", done=9, total=9, seen_at=now)
    GuardTask.objects.create(name="price", work="rebuild", status="running", seen_at=now - timedelta(hours=1))

    answer = staff("view_guardstate").get(f"{PAGE}progress/")

    busy = {task["guard"]: (task["busy"], task["done"], task["total"]) for task in json.loads(answer.content)["tasks"]}
    assert busy == {"product": (True, 5, 10), "order": (False, 9, 9), "price": (False, 0, 0)}
    page = staff("view_guardstate").get(PAGE).content.decode()
    assert '<progress max="10" value="5"' in page


def test_the_sum_of_all_guards_is_drawn(staff, build, monkeypatch):
    """Charts add up what was counted for every guard, or for one; a shadow tells what it would have done."""

    def read_series(guards, start, end, step):
        length = -(-int((end - start).total_seconds()) // step)
        return {
            guard.name: figures.Series(
                guard.name,
                int(start.timestamp()),
                step,
                length,
                {
                    "would-be 404": [2] * length,
                    "would-be false 404": [1] * length,
                    "blocked": [1_000] + [0] * (length - 1),
                    "false absence": [0] * (length - 1) + [1],
                },
                "the store is away" if guard.name == "order" else "",
            )
            for guard in guards
        }

    monkeypatch.setattr(figures, "read_series", read_series)
    client = staff("view_guardstate")

    page, own = client.get(PAGE).content.decode(), client.get(f"{PAGE}?guard=product").content.decode()

    assert f'<span class="bg-total">{len(registry)},000</span>' in page
    assert "the store is away" in page
    assert "rows that are missing from their filters" in page
    assert '<span class="bg-total">1,000</span>' in own
    assert "the store is away" not in own
    assert "would have been blocked" not in page
    monkeypatch.setattr(registry["product"], "mode", "shadow")
    build("product")
    watching = client.get(f"{PAGE}?period=hour").content.decode()
    assert "120 would have been blocked, 60 of them wrongly." in watching
    assert len(re.findall("<rect x=", own)) == 3  # blocked, so avoided as well; and a false absence passed


def test_a_guard_that_cannot_work_does_not_take_the_page_away(staff):
    """Its line says that the system checks tell why."""
    with registered(Product, name="broken", lookup="nothing"):
        page = staff("view_guardstate").get(PAGE).content.decode()

    line = re.search(r'<tr[^>]*data-guard="broken".*?</tr>', page, re.DOTALL)[0]
    assert "misconfigured" in line
    assert "manage.py check" in line.replace("Manage.py", "manage.py")


def test_before_migrate_the_page_shows_every_guard_as_cold(staff, clock):
    """So too while the database of the state rows does not answer: the page reads what it can."""
    client = staff("view_guardstate")
    with connections["default"].cursor() as cursor:
        cursor.execute("ALTER TABLE bloomguard_guardstate RENAME TO elsewhere")
        try:
            clock.sleep(2)
            response = client.get(PAGE)
        finally:
            cursor.execute("ALTER TABLE elsewhere RENAME TO bloomguard_guardstate")

    assert response.status_code == 200
    assert response.content.decode().count(">cold<") == len(registry)


def test_without_guards_the_page_says_what_to_do(staff, monkeypatch):
    """An app's guards.py declares them; and it says what will be seen here, without charts of nothing."""
    monkeypatch.setattr("bloomguard.admin.registry", [])

    page = staff("view_guardstate").get(PAGE).content.decode()

    assert "There are no guards yet" in page
    assert "@register(Product)" in page
    assert "Here you will see for each guard:" in page
    assert "bg-chart" not in page
    assert "bg-table" not in page


def test_without_requests_the_page_says_what_to_expect(staff, monkeypatch):
    """There is no chart of nothing; where the figures could not be read, it does not say that there were none."""
    client = staff("view_guardstate")
    empty = client.get(PAGE).content.decode()

    def read_series(guards, start, end, step):
        return {guard.name: figures.Series(guard.name, 0, step, 24, {}, "the store is away") for guard in guards}

    monkeypatch.setattr(figures, "read_series", read_series)
    unread = client.get(PAGE).content.decode()

    assert "No requests were counted in this period." in empty
    assert "<rect x=" not in empty
    assert "the store is away" in unread
    assert "No requests were counted" not in unread


def test_shadow_and_enforce_switch_a_guard_while_it_runs(staff, build, clock):
    """Within a lease every process follows; a build that is going on is not disturbed, and the log says who did it."""
    build("product")
    client, guard = staff("operate_guardstate"), registry["product"]
    version = GuardState.objects.get(name="product").version
    before = guard.verdict(99)

    post(client, OPERATE, action="shadow", guard="product")
    clock.now += 2
    shadow, page = guard.verdict(99), client.get(PAGE).content.decode()
    post(client, OPERATE, action="enforce", guard="product")
    clock.now += 2

    assert (before, shadow, guard.verdict(99)) == (Verdict.ABSENT, Verdict.UNKNOWN, Verdict.ABSENT)
    assert re.search(r'data-guard="product".*?bg-is-shadow.*?</tr>', page, re.DOTALL)
    row = GuardState.objects.get(name="product")
    assert (row.mode, row.version) == ("", version)
    assert [entry.change_message.partition(":")[0] for entry in LogEntry.objects.order_by("pk")] == [
        "In shadow mode",
        "Enforcing",
    ]


@pytest.mark.parametrize("is_built", [True, False], ids=["fenced", "never built"])
def test_a_guard_without_a_filter_in_use_is_not_said_to_answer(staff, build, clock, is_built):
    """Neither to the user nor in the log: to enforce what is fenced changes no answer."""
    client = staff("operate_guardstate")
    if is_built:
        build("product")
        post(client, OPERATE, action="fence", guard="product")
        clock.now += 2
    post(client, OPERATE, action="enforce", guard="product")
    page = client.get(PAGE).content.decode()

    assert "if the guard has a valid filter" in LogEntry.objects.latest("pk").change_message
    assert "Enforcing:" not in page


def test_a_guard_that_was_never_built_can_be_switched(staff, build, clock):
    """What was switched before the first build holds after it, whatever the guard itself says."""
    with registered(Product, name="new", mode="shadow") as guard:
        client = staff("operate_guardstate")
        post(client, OPERATE, action="enforce", guard="new")
        build("new")
        enforced = guard.verdict(99)
        post(client, OPERATE, action="shadow", guard="new")
        clock.now += 2

        assert enforced is Verdict.ABSENT
        assert guard.verdict(99) is Verdict.UNKNOWN
        assert GuardState.objects.get(name="new").mode == ""


def test_a_guard_that_cannot_work_is_no_error_of_the_page(staff):
    """Its fence and its mode are rows like any other guard's: others that are ticked with it are seen to as well."""
    client = staff("operate_guardstate")

    with registered(Article, name="flag", lookup="deleted"):
        for action in ("fence", "shadow", "enforce"):
            assert post(client, OPERATE, action=action, guard=["flag", "product"]).status_code == 302

    assert LogEntry.objects.filter(object_id="product").count() == 3


def test_an_operation_is_not_held_up_by_the_transaction_of_a_request(staff, monkeypatch, build):
    """``ATOMIC_REQUESTS`` on SQLite, which has one writer at a time: the rows are changed, and it is logged."""
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    monkeypatch.setitem(connections["default"].settings_dict["OPTIONS"], "timeout", 0.1)
    states.table.connection.close()

    post(staff("operate_guardstate"), OPERATE, action="shadow", guard=["product", "article"])
    states.table.forget()

    assert {state.mode for state in map(states.table.current, ("product", "article"))} == {"shadow"}
    assert LogEntry.objects.count() == 2
