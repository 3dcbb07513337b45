"""What is known of the clients that people run: their bugs, and how confluent-kafka is configured and asked."""
