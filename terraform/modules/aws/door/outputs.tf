output "target_group_arns" {
  description = "Groups that the machines of the service are to join, by the port that clients use."
  value       = { for port, group in aws_lb_target_group.this : port => group.arn }
}
