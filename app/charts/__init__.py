"""How are results drawn? Pure functions from figures to whole Plotly figures and sentences.

Read `base/figure.py` first (what every chart returns), then `job/window_charts.py`, the table of
the charts that one window's result can draw. Each subfolder is a page: `job`, `worker`, `fleet`,
`compare`, `timeline` and `report`. The API, the consumer and the CLI import it; charts import the
engine, diagnosis and trace, never the store.
"""
