output "vpc_id" {
  description = "The network."
  value       = aws_vpc.this.id
}

output "private_subnet_ids" {
  description = "A subnet in each zone whose machines have no public address."
  value       = [for zone in local.zones : aws_subnet.private[zone].id]
}

output "public_subnet_ids" {
  description = "A subnet in each zone for the load balancer."
  value       = [for zone in local.zones : aws_subnet.public[zone].id]
}
