"""One silo: Flower ClientApp, local training, drift control, policy guard, outbox."""
