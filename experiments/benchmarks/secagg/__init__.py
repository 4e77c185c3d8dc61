"""Cost of secure aggregation beside Flower's SecAgg+ and the floor of the machine."""
