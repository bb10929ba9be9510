"""Rows of FleetPlans."""

from sqlalchemy import Column, String, Table

from store.tables.metadata import METADATA, noun_columns

FLEET_PLANS = Table("fleet_plans", METADATA, Column("base", String, primary_key=True), *noun_columns())
