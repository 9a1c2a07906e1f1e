"""The main job: an ID that was never stored is answered before cache and database."""

from __future__ import annotations

import pytest

from tests.shop.models import Product


@pytest.mark.parametrize("url", ["/products/{}/", "/decorated/{}/", "/api/v1/products/{}/"])
def test_an_absent_id_costs_no_query(url, build, client, django_assert_num_queries):
    """A guarded route answers an ID without a row by 404, and asks the database nothing."""
    Product.objects.create(pk=1)
    build("product")
    client.get(url.format(2))

    with django_assert_num_queries(0):
        response = client.get(url.format(3))

    assert response.status_code == 404
    assert response["Cache-Control"] == "no-store"


@pytest.mark.parametrize("url", ["/products/{}/", "/decorated/{}/", "/api/v1/products/{}/"])
def test_an_existing_id_passes(url, build, client):
    """A guarded route answers an ID with a row as it did before."""
    Product.objects.create(pk=7)
    build("product")

    assert client.get(url.format(7)).content == b"product 7"
