terraform {
  required_version = ">= 1.9"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.25"
    }
  }
}

locals {
  # By the port that clients use. A network load balancer, because it neither buffers a stream nor ends a long one.
  listeners = merge(
    { 443 = { port = var.http_port, alpn = null } },
    var.grpc_port == null ? {} : { 9443 = { port = var.grpc_port, alpn = "HTTP2Only" } },
  )
}

resource "aws_acm_certificate" "this" {
  domain_name       = var.domain
  validation_method = "DNS"
  key_algorithm     = "EC_prime256v1"
  tags              = var.tags

  lifecycle {
    create_before_destroy = true
  }
}

locals {
  proof = tolist(aws_acm_certificate.this.domain_validation_options)[0] # one name, one proof
}

resource "aws_route53_record" "validation" {
  zone_id         = var.zone_id
  name            = local.proof.resource_record_name
  type            = local.proof.resource_record_type
  records         = [local.proof.resource_record_value]
  ttl             = 60
  allow_overwrite = true
}

resource "aws_acm_certificate_validation" "this" {
  certificate_arn         = aws_acm_certificate.this.arn
  validation_record_fqdns = [aws_route53_record.validation.fqdn]
}

resource "aws_security_group" "this" {
  name_prefix = "${var.name}-door-"
  description = "Who may reach the service"
  vpc_id      = var.vpc_id
  tags        = merge(var.tags, { Name = "${var.name}-door" })

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each = {
    for pair in setproduct(keys(local.listeners), var.client_cidrs) : join(" ", pair) => pair
  }

  security_group_id = aws_security_group.this.id
  description       = "Clients"
  cidr_ipv4         = each.value[1]
  ip_protocol       = "tcp"
  from_port         = tonumber(each.value[0])
  to_port           = tonumber(each.value[0])
  tags              = var.tags
}

resource "aws_vpc_security_group_egress_rule" "targets" {
  for_each = local.listeners

  security_group_id            = aws_security_group.this.id
  description                  = "To the routers"
  referenced_security_group_id = var.target_security_group_id
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
  tags                         = var.tags
}

resource "aws_vpc_security_group_ingress_rule" "targets" {
  for_each = local.listeners

  security_group_id            = var.target_security_group_id
  description                  = "From the load balancer"
  referenced_security_group_id = aws_security_group.this.id
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
  tags                         = var.tags
}

resource "aws_lb" "this" {
  # checkov:skip=CKV_AWS_91:routers count and trace requests; addresses of clients would be kept in one more place
  # checkov:skip=CKV_AWS_150:on by default; examples that are to be thrown away turn it off
  name_prefix                      = "door-"
  load_balancer_type               = "network"
  internal                         = var.internal
  subnets                          = var.subnet_ids
  security_groups                  = [aws_security_group.this.id]
  enable_cross_zone_load_balancing = true
  enable_deletion_protection       = var.deletion_protection
  tags                             = merge(var.tags, { Name = var.name })
}

resource "aws_lb_target_group" "this" {
  for_each = local.listeners

  name_prefix          = "door-"
  port                 = each.value.port
  protocol             = var.router_tls ? "TLS" : "TCP"
  target_type          = "instance"
  vpc_id               = var.vpc_id
  deregistration_delay = 300 # streams that are under way end by themselves
  tags                 = merge(var.tags, { Name = "${var.name}-${each.key}" })

  # Both ports belong to one router, which says by HTTP how it is.
  health_check {
    protocol            = var.router_tls ? "HTTPS" : "HTTP"
    port                = var.http_port
    path                = "/health"
    interval            = 10
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_lb_listener" "this" {
  for_each = local.listeners

  load_balancer_arn = aws_lb.this.arn
  port              = tonumber(each.key)
  protocol          = "TLS"
  ssl_policy        = "ELBSecurityPolicy-TLS13-1-2-2021-06"
  alpn_policy       = each.value.alpn
  certificate_arn   = aws_acm_certificate_validation.this.certificate_arn
  tags              = var.tags

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.this[each.key].arn
  }
}

resource "aws_route53_record" "this" {
  zone_id = var.zone_id
  name    = var.domain
  type    = "A"

  alias {
    name                   = aws_lb.this.dns_name
    zone_id                = aws_lb.this.zone_id
    evaluate_target_health = true
  }
}
