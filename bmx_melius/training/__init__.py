"""What train_imagenet.py is made of: data, schedule, checkpoints, interruption, report, export."""
