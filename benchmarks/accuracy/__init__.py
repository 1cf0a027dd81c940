"""How accurate the level-1 estimators are: what `benchmarks/accuracy_level1.py` runs.

``tables`` says what is judged, ``records`` turns hold-outs into the records of accuracy.json,
``ffn`` and ``curves`` add what no single table tells, ``plots`` draws, ``goals`` compares with
what was aimed at, ``page`` writes accuracy.md.
"""
