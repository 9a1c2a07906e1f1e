"""Writes of every kind to drawn models: by the ORM, by raw SQL, and by what they cause in other tables."""

from __future__ import annotations

import random
from typing import Any

from asgiref.sync import async_to_sync
from django.db import connections, models
from django.db.models import Case, F, QuerySet, When

from tests.support import database

from .drawn import Site

#: The writes of which a guard with ``sync = "signals"`` learns.
SAVING = ("create", "save", "save_fields", "get_or_create", "delete", "delete_many", "parent")


class Writes:
    """Each method writes rows of ``model`` in one way. The same ``draw`` does the same again in the same state."""

    def __init__(self, site: Site, seed: float) -> None:
        self.site = site
        self.draw = random.Random(seed)
        self.model: Any = self.draw.choice([*site.models, *3 * [model for model, _ in site.guards], site.owner])
        self.rows = self.model._base_manager if self.draw.random() < 0.2 else QuerySet(self.model)

    def perform(self) -> None:
        ways = [
            self.create, self.create, self.create, self.create, self.save, self.save_fields, self.bulk_create,
            self.update, self.update, self.update, self.update_computed, self.bulk_update, self.get_or_create,
            self.delete, self.delete_many, self.raw, self.raw_insert, self.related, self.parent, self.asynchronous,
        ]  # fmt: skip
        way = self.draw.choice(ways)
        self.way = way.__name__
        way()

    def value(self, field: Any) -> Any:
        if field.null and self.draw.random() < 0.25:
            return None
        if field.remote_field is not None:
            found = [*field.related_model._base_manager.values_list(field.target_field.attname, flat=True)]
            return self.draw.choice([*found, None] if field.null or not found else found)
        if field.model is self.site.owner:
            number = self.draw.randrange(9)
            return f"o{number}" if field.name == "slug" else number
        return self.site.value(field.name, self.draw)

    def plain(self) -> list[Any]:
        """The columns that a write may set."""
        return [
            field
            for field in self.model._meta.concrete_fields
            if not field.generated
            and not field.get_internal_type().endswith("AutoField")
            and not getattr(field.remote_field, "parent_link", False)
        ]

    def made(self) -> Any:
        given = {}
        for field in self.plain():
            if not (field.has_default() or field.has_db_default()) or self.draw.random() < 0.6:
                given[field.attname] = self.value(field)
        return self.model(**given)

    def some(self) -> Any:
        found = list(self.rows.order_by("pk")[:20])
        return self.draw.choice(found) if found else self.made()

    def change(self, row: Any, count: int = 2) -> list[str]:
        """Set some columns; return their names."""
        fields = self.draw.sample(self.plain(), min(count, len(self.plain())))
        for field in fields:
            alike = [each for each in self.plain() if self.site.kinds.get(each.name) == self.site.kinds.get(field.name)]
            computed = self.draw.random() < 0.1 and not field.is_relation and row.pk is not None
            setattr(row, field.attname, F(self.draw.choice(alike).name) if computed else self.value(field))
        return [field.name for field in fields]

    def create(self) -> None:
        self.made().save(force_insert=self.draw.random() < 0.6)

    def save(self) -> None:
        row = self.some()
        self.change(row)
        row.save()

    def save_fields(self) -> None:
        row = self.some()
        names = self.change(row)
        if self.draw.random() < 0.5:
            row.save(update_fields=names)
        else:
            row = self.rows.only("pk", *names).get(pk=row.pk)
            self.change(row)
            row.save()

    def bulk_create(self) -> None:
        if self.model._meta.parents:
            self.create()
            return
        rows = [self.made() for _ in range(3)]
        names = [field.name for field in self.plain() if not field.primary_key]
        unique = [field.name for field in self.plain() if field.unique]
        options: list[dict[str, Any]] = [{}, {"ignore_conflicts": True}]
        if names and (found := database.conflicting(*unique[:1]) if unique else None) is not None:
            options.append({"update_conflicts": True, "unique_fields": found, "update_fields": names})
        elif names and self.site.vendor == "mysql":
            options.append({"update_conflicts": True, "update_fields": names})
        self.rows.bulk_create(rows, **self.draw.choice(options))

    def update(self) -> None:
        """One column or two, rather of those that decide who is alive; of one row or of all."""
        decisive = [field for field in self.plain() if field.name in self.site.decisive]
        fields = self.draw.sample(decisive if decisive and self.draw.random() < 0.6 else self.plain(), 1)
        fields += self.draw.sample(self.plain(), self.draw.randint(0, 1))
        found = self.rows.filter(pk=self.some().pk) if self.draw.random() < 0.5 else self.rows.all()
        found.update(**{field.name: self.value(field) for field in fields})

    def update_computed(self) -> None:
        """Columns change places, or get what an expression gives."""
        one, other = self.draw.choice(self.plain()), self.draw.choice(self.plain())
        kinds = self.site.kinds
        if kinds.get(one.name) == kinds.get(other.name) and not one.is_relation and one is not other:
            self.rows.update(**{one.name: F(other.name), other.name: F(one.name)})
        elif kinds.get(one.name) == "integer":
            self.rows.update(**{one.name: F(one.name) + self.draw.choice([-1, 1, 100])})
        elif not one.is_relation:
            whens = [When(flag=True, then=models.Value(self.value(one), one))] if hasattr(self.model, "flag") else []
            self.rows.update(**{one.name: Case(*whens, default=models.Value(self.value(one), one))})

    def bulk_update(self) -> None:
        rows = list(self.rows.order_by("pk")[:3])
        fields = [field for field in self.plain() if not field.primary_key]
        if rows and fields and not isinstance(self.model._meta.pk, models.CompositePrimaryKey):
            field = self.draw.choice(fields)
            for row in rows:
                setattr(row, field.attname, self.value(field))
            self.rows.bulk_update(rows, [field.name], batch_size=self.draw.choice([None, 1]))

    def get_or_create(self) -> None:
        field, made = self.draw.choice(self.plain()), self.made()
        defaults = {each.attname: made.__dict__[each.attname] for each in self.plain()}
        method = self.draw.choice([self.rows.get_or_create, self.rows.update_or_create])
        method(**{field.attname: defaults.pop(field.attname)}, defaults=defaults)

    def delete(self) -> None:
        row = self.some()
        row.delete(**({"keep_parents": True} if self.model._meta.parents and self.draw.random() < 0.3 else {}))

    def delete_many(self) -> None:
        field = self.draw.choice(self.plain())
        self.rows.filter(**{field.name: self.value(field)}).delete()

    def raw(self) -> None:
        """An UPDATE or a DELETE that no compiler has made."""
        connection, row = connections[database.current], self.some()
        name, stored = connection.ops.quote_name, list(self.model._meta.local_concrete_fields)
        stored = [field for field in stored or row._meta.concrete_fields if not field.generated]
        field, other = self.draw.choice(stored), self.draw.choice(stored)
        value = field.get_db_prep_save(getattr(row, field.attname), connection)
        new = other.get_db_prep_save(getattr(self.made(), other.attname, None), connection)
        table, where = name(field.model._meta.db_table), f"{name(field.column)} = %s"
        with connection.cursor() as cursor:
            if self.draw.random() < 0.3 or field.model is not other.model:
                cursor.execute(f"DELETE FROM {table} WHERE {where}", [value])
            else:
                cursor.execute(f"UPDATE {table} SET {name(other.column)} = %s WHERE {where}", [new, value])

    def raw_insert(self) -> None:
        if self.model._meta.parents:
            self.create()
            return
        row, connection = self.made(), connections[database.current]
        fields = [field for field in self.plain() if not hasattr(row.__dict__[field.attname], "resolve_expression")]
        columns = ", ".join(connection.ops.quote_name(field.column) for field in fields)
        values = [field.get_db_prep_save(row.__dict__[field.attname], connection) for field in fields]
        table = connection.ops.quote_name(self.model._meta.db_table)
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table} ({columns}) VALUES ({', '.join(['%s'] * len(fields))})", values)

    def related(self) -> None:
        owners = list(self.site.owner._base_manager.order_by("pk"))
        if owners and hasattr(self.site.top, "owner"):
            manager = self.draw.choice(owners).rows
            rows = list(QuerySet(self.site.top).order_by("pk")[:2])
            ways = [lambda: manager.set(rows), lambda: manager.add(*rows, bulk=self.draw.random() < 0.5), manager.clear]
            self.draw.choice([*ways, lambda: manager.update(number=F("number") + 1)])()

    def parent(self) -> None:
        """A parent's row becomes a child's, or is stored as a fixture stores it."""
        row = self.some()
        links = [link for link in self.model._meta.parents.values() if link is not None]
        if links and self.draw.random() < 0.5:
            found = list(QuerySet(links[0].related_model).order_by("pk"))
            if found:
                up = self.draw.choice(found)
                row = self.model(**{field.attname: up.__dict__[field.attname] for field in up._meta.concrete_fields})
                setattr(row, links[0].attname, up.pk)
                for field in self.model._meta.local_concrete_fields:
                    if field is not links[0]:
                        setattr(row, field.attname, self.value(field))
        else:
            self.change(row)
        row.save_base(raw=True) if self.draw.random() < 0.6 else row.save()

    def asynchronous(self) -> None:
        row, found = self.made(), self.rows.filter(pk=self.some().pk)
        field = self.draw.choice(self.plain())
        given = {field.name: self.value(field)}
        ways = [row.asave, lambda: found.aupdate(**given), found.adelete, lambda: self.rows.abulk_create([row])]
        way = self.draw.choice(ways)

        async def write() -> None:
            await way()

        async_to_sync(write)()
