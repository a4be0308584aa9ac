"""What the test harness decides: how a payload is taken apart, what two outputs differ in, what is worth a warning."""
