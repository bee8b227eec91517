"""What train_imagenet.py is made of, apart from its data: options, schedule, checkpoints, interruption, report, export."""
