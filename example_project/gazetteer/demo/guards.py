"""The route of the demo's modes `route` and `door`, whose settings install this folder as an app.

A site names its routes in the guard itself: `routes = ["city-detail"]`.
"""

from gazetteer.guards import CityGuard

CityGuard.routes = ["city-detail"]
