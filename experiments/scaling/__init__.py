"""Which scaling of the features trains better at equal epsilon; see docs/design/feature-scaling.md."""
